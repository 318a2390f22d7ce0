"""What `plan` says of the output projection's variants, against the layers themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_attention.layers import output_projection as layers
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.testing import SPECS
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.static_buffers import StaticBuffers
from ascend_vllm_plugin.planning.plan import Plan, make_plan
from ascend_vllm_plugin.planning.projection import planned_projection
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.weights import Layout, weights_by_part

SPEC = DeepseekV4Spec.from_config(SPECS["tensor_parallel"].original_config())
FLASH = Path(__file__).parent / "data" / "deepseek_v4_flash.json"
BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("kind", "layout", "device", "asked", "exchange"),
    [
        (layers.ExchangedOutputProjection, Layout(1, 4), "A3", "auto", 2),
        (layers.ExchangedOutputProjection, Layout(2, 2), "A2", "auto", 2),
        (layers.LatentParallelOutputProjection, Layout(8), "A3", "auto", 1),
        (layers.QuantizedExchangedOutputProjection, Layout(1, 2), "A5", "otp_fp8", 2),
    ],
)
def test_buffers_are_those_of_the_layer(
    kind: Any, layout: Layout, device: str, asked: str, exchange: int
) -> None:
    planned = planned_projection(SPEC, layout, device, BF16, asked, exchange)
    assert planned.ranks > 1
    assert planned.own_group == (planned.ranks not in (layout.data, layout.tensor))
    buffers = StaticBuffers()
    group = SimpleNamespace(world_size=planned.ranks)
    plain = planned.part, SPEC.o_lora_rank, SPEC.hidden_size, BF16
    kind(*plain, group, buffers, 5, "cpu")
    found = buffers["o_proj_send"].nbytes + buffers["o_proj_received"].nbytes
    assert planned.buffer_bytes(5, 2) == found
    assert planned.buffer_bytes(0, 2) == 0


def test_plain_has_no_buffers() -> None:
    planned = planned_projection(SPEC, Layout(), "A5", BF16, "fp8")
    assert (planned.ranks, planned.own_group, planned.buffer_bytes(8, 2)) == (1, False, 0)


def test_weights_in_eight_bits_with_their_scales() -> None:
    planned = planned_projection(SPEC, Layout(), "A5", BF16, "fp8")
    layer = layers.QuantizedOutputProjection(planned.part, SPEC.o_lora_rank, SPEC.hidden_size, BF16)
    plain = sum(one.nbytes for one in layer.parameters())
    layer.quantize_weights()
    held = sum(one.nbytes for one in (*layer.parameters(), *layer.buffers()))
    before = weights_by_part(SPEC, Layout(), BF16)
    after = weights_by_part(
        SPEC, Layout(), BF16, projection=planned.part, projection_quantised=True
    )
    assert before["attention"] - after["attention"] == SPEC.num_hidden_layers * (plain - held)


def planned(**changes: Any) -> Plan:
    base = PlanRequest(
        "A3", Layout(2, 4), max_model_len=4096, dtype="bfloat16", weight_format="w8a8"
    )
    return make_plan(read_model(FLASH), replace(base, **changes))


def test_replicas_that_share_a_projection_hold_less_and_talk_in_a_group_of_their_own() -> None:
    alone, shared = planned(), planned(o_proj_tensor_parallel_size=2)
    assert shared.projection.variant.name == "otp"
    assert shared.weights["attention"] < alone.weights["attention"]
    exchanged = shared.projection.buffer_bytes(shared.request.graph_tokens, 2)
    assert shared.buffers.bytes - alone.buffers.bytes == exchanged > 0
    assert shared.hccl.bytes * 3 == alone.hccl.bytes * 4
    assert planned(o_proj_tensor_parallel_size=4).hccl == alone.hccl
    assert planned(o_proj_tensor_parallel_size=2, graphs=False).buffers == alone.buffers


def test_what_the_engine_refuses_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="fp8: it exists on A5, not on A3"):
        planned(o_proj="fp8")
    with pytest.raises(InvalidInputError, match="=3 must divide data_parallel_size=4"):
        planned(o_proj_tensor_parallel_size=3)
    with pytest.raises(InvalidInputError, match="o_proj_tensor_parallel_size=0: it must be at"):
        planned(o_proj_tensor_parallel_size=0)
