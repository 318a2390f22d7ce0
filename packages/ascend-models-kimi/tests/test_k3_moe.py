"""Kimi-K3's experts: by their definition, over ranks, and from MXFP4.

Ranks are threads; the plugin's tests serve the model in processes.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_fused_moe.groups import ParallelGroups, SingleRank, single_rank
from ascend_fused_moe.quantized_rules import WeightForms
from ascend_models_kimi.kimi_k3.moe import AscendKimiMoE
from ascend_models_kimi.kimi_linear.build import Build
from ascend_models_kimi.kimi_linear.config import KimiLinearSpec
from ascend_models_kimi.kimi_linear.quantization import LAYER_RULES
from ascend_models_kimi.kimi_linear.sharding import Shard
from ascend_models_kimi.kimi_linear.weights import main_table
from ascend_models_kimi.testing.mxfp4 import pack_mxfp4, unpack_mxfp4
from ascend_models_kimi.testing.oracle_k3 import K3Oracle
from ascend_models_kimi.testing.tiny_k3 import K3_SPECS, TinyK3Spec, k3_tensors
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.quantized_weights import QuantizationResolver
from ascend_ops_core.testing.simulated_group import SimulatedGroup, on_grid

LAYER = 2
PREFIX = f"model.layers.{LAYER}.block_sparse_moe."


def oracle_of(tiny: TinyK3Spec) -> Any:
    """The formulas on a checkpoint that was never written."""
    made = K3Oracle.__new__(K3Oracle)
    made.config = tiny.text_config()
    made.tensors = {name: tensor.double() for name, tensor in k3_tensors(tiny).items()}
    made.gap = SimpleNamespace(see=lambda *_: None)
    return made


def block_of(
    tiny: TinyK3Spec, groups: ParallelGroups, tensors: dict[str, torch.Tensor]
) -> AscendKimiMoE:
    """A rank's block, with its part of a checkpoint."""
    spec = KimiLinearSpec.from_config(tiny.published_config())
    shard = Shard.of(
        spec,
        groups.tp.world_size,
        groups.tp.rank_in_group,
        (0, 1),
        whole_experts=groups.expert_parallel,
    )
    plain = main_table(spec, shard, "language_model.")
    forms = WeightForms(plain, QuantizationResolver.of(tiny.text_config(), LAYER_RULES))
    assert not forms.problems
    build: Any = SimpleNamespace(
        spec=spec, shard=shard, dtype=torch.float32, groups=groups, forms=forms, device="cpu"
    )
    build.activation = Build.activation.fget(build)  # type: ignore[attr-defined]
    build.experts = lambda module: Build.experts(build, module)
    block = AscendKimiMoE(build, PREFIX.removesuffix("."))
    for name, parameter in block.named_parameters():
        if "experts" not in name:
            parameter.data.fill_(float("nan"))
    rules = {
        name: replace(rule, param=rule.param.removeprefix(PREFIX))
        for name, rule in forms.table.rules.items()
        if name.startswith(f"language_model.{PREFIX}")
    }
    own = {name: tensor for name, tensor in tensors.items() if name in rules}
    WeightTable(rules, ("no other",)).load(block, own.items())
    return block


def stored(tiny: TinyK3Spec) -> dict[str, torch.Tensor]:
    """The tensors as the checkpoint has them."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in k3_tensors(tiny).items():
        if tiny.quantized and ".experts." in name:
            found[f"{name}_packed"], found[f"{name}_scale"] = pack_mxfp4(tensor)
        else:
            found[name] = tensor
    return found


def inputs(tiny: TinyK3Spec, tokens: int) -> torch.Tensor:
    return torch.randn(tokens, tiny.hidden_size, generator=torch.Generator().manual_seed(tokens))


def by_formulas(oracle: Any, x: torch.Tensor) -> torch.Tensor:
    rows = [oracle._ffn(f"model.layers.{LAYER}", token.double()) for token in x]
    return torch.stack(rows).float() if rows else x


@pytest.mark.parametrize("name", ["k3", "k3_odd"])
@pytest.mark.parametrize("tokens", [0, 1, 13])
def test_by_definition(name: str, tokens: int) -> None:
    tiny = K3_SPECS[name]
    x = inputs(tiny, tokens)
    got = block_of(tiny, single_rank(), stored(tiny))(x)
    torch.testing.assert_close(got, by_formulas(oracle_of(tiny), x), atol=2e-5, rtol=1e-5)


def test_mxfp4_experts_equal_their_values() -> None:
    """Two values a byte, the even column low: rounded values in the formulas, stored ones here."""
    tiny = K3_SPECS["k3_mxfp4"]
    oracle = oracle_of(tiny)
    for name, tensor in k3_tensors(tiny).items():
        if ".experts." in name:
            oracle.tensors[name] = unpack_mxfp4(*pack_mxfp4(tensor))
    block = block_of(tiny, single_rank(), stored(tiny))
    assert block.experts.get_parameter("w13").dtype == torch.uint8
    x = inputs(tiny, 9)
    torch.testing.assert_close(block(x), by_formulas(oracle, x), atol=2e-5, rtol=1e-5)
    # The bars tell rounded experts from the others.
    assert float((block(x) - by_formulas(oracle_of(tiny), x)).abs().max()) > 1e-2


def test_nibbles_by_hand() -> None:
    weight = torch.zeros(1, 32)
    weight[0, :4] = torch.tensor([6.0, -1.5, 0.5, -12.0])
    packed, scale = pack_mxfp4(weight)
    # The group's power is 2, so 6 is 3 (code 5), -1.5 is -0.75 (code 1 or 2, negative), and so on.
    assert scale.tolist() == [[128]]
    assert packed[0, 0] & 15 == 5
    assert packed[0, 1] >> 4 == 15
    assert unpack_mxfp4(packed, scale)[0, [0, 3]].tolist() == [6.0, -12.0]


@pytest.mark.parametrize("name", ["k3", "k3_odd", "k3_mxfp4"])
@pytest.mark.parametrize("whole", [False, True], ids=["slices", "whole experts"])
def test_ranks_sum_each_output_once(name: str, whole: bool) -> None:
    tiny = K3_SPECS[name]
    # A slice of 16 channels would cut a group of 32.
    tiny = replace(tiny, moe_intermediate_size=64) if tiny.quantized else tiny
    ranks = 3 if name == "k3_odd" else 2
    x, tensors = inputs(tiny, 7), stored(tiny)
    expected = block_of(tiny, single_rank(), tensors)(x)

    def one(
        row: SimulatedGroup, column: SimulatedGroup, everyone: SimulatedGroup
    ) -> tuple[torch.Tensor, list[str]]:
        groups = ParallelGroups(row, SingleRank(), everyone if whole else SingleRank())
        out = block_of(tiny, groups, tensors)(x.clone())
        return out, [call for call in row.calls if call in ("all_reduce", "reduce_scatter")]

    for out, sums in on_grid(1, ranks, one):
        torch.testing.assert_close(out, expected, atol=2e-5, rtol=1e-5)
        # Whole experts are summed by their own way of communication, the shared ones by theirs.
        assert sums == ["all_reduce"] * (2 if whole else 1)
