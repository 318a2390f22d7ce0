"""A table of tensors in the form of a quantised checkpoint: MXFP8, of a model without a name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_fused_moe.layers.expert_rule import ExpertRule
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_fused_moe.quantized_rules import WeightForms, finish_weights
from ascend_fused_moe.testing.quantizers import Layout, mxfp8, write_quantised
from ascend_fused_moe.testing.table_model import ExpertSizes, model_of
from ascend_ops_core.checkpoint.table import CheckpointError, TensorRule, WeightTable
from ascend_ops_core.quantized_weights import LayerRules, QuantizationResolver
from ascend_ops_core.quantized_weights.weight import QuantizedWeight
from ascend_ops_core.testing import assert_close
from safetensors.torch import load_file, save_file

HIDDEN, INTER, EXPERTS = 64, 32, 2
RULES = LayerRules(kept=(r"(^|\.)gate$",), dequantized=(r"(^|\.)latent$",))
EXPERT = ExpertSizes(EXPERTS, HIDDEN, INTER)
MXFP8 = {"quantization_config": {"quant_method": "mxfp8", "ignored_layers": ["head"]}}
LAYOUT = Layout(mxfp8("weight_scale_inv"), mxfp8("weight_scale_inv"), MXFP8)


def table() -> WeightTable:
    """Two packed projections, a layer that is dequantised, kept ones, and experts."""
    rules: dict[str, TensorRule] = {
        "q.weight": TensorRule((64, HIDDEN), "qkv", (slice(0, 64),)),
        "k.weight": TensorRule((32, HIDDEN), "qkv", (slice(64, 96),)),
        "latent.weight": TensorRule((32, HIDDEN), "latent"),
        "gate.weight": TensorRule((EXPERTS, HIDDEN), "gate"),
        "head.weight": TensorRule((8, HIDDEN), "head"),
        "norm.weight": TensorRule((HIDDEN,), "norm"),
    }
    shapes = {
        "w1": ((INTER, HIDDEN), "w13", (slice(0, INTER),)),
        "w3": ((INTER, HIDDEN), "w13", (slice(INTER, 2 * INTER),)),
        "w2": ((HIDDEN, INTER), "w2", ()),
    }
    for expert in range(EXPERTS):
        for tensor, (shape, param, target) in shapes.items():
            rules[f"experts.{expert}.{tensor}.weight"] = ExpertRule(
                shape, f"experts.{param}", target, expert=expert, tensor=tensor
            )
    return WeightTable(rules, ())


@pytest.fixture
def stored(tmp_path: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Tensors of the quantised checkpoint, and what they stand for."""
    generator = torch.Generator().manual_seed(3)
    plain = tmp_path / "plain"
    plain.mkdir()
    tensors = {n: torch.randn(r.shape, generator=generator) for n, r in table().rules.items()}
    save_file(tensors, plain / "model.safetensors")
    (plain / "config.json").write_text("{}")
    written = tmp_path / "quantised", tmp_path / "floats"
    write_quantised(plain, *written, LAYOUT, kept=r"(gate|head)\.", experts=r"experts\.")
    assert json.loads((written[0] / "config.json").read_text()) == MXFP8
    quantised, floats = (load_file(one / "model.safetensors") for one in written)
    return quantised, floats


def forms(config: dict[str, Any] = MXFP8) -> WeightForms:
    return WeightForms(table(), QuantizationResolver.of(config, RULES))


def test_what_is_held_is_what_the_checkpoint_stands_for(
    stored: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]],
) -> None:
    quantised, floats = stored
    plain, made = model_of(table(), None, EXPERT), forms()
    table().load(plain, floats.items())
    model = model_of(table(), made, EXPERT)
    filled = made.table.load(model, quantised.items())
    assert filled == {name for name, _ in model.named_parameters()}
    finish_weights(model)
    packed = model.get_submodule("qkv")
    assert isinstance(packed, QuantizedWeight)
    assert_close(packed(torch.eye(HIDDEN)).T, plain.get_parameter("qkv"))
    for name in ("latent", "gate", "head", "norm"):
        assert torch.equal(model.get_parameter(name), plain.get_parameter(name))
    experts, other = model.get_submodule("experts"), plain.get_submodule("experts")
    assert isinstance(experts, AscendRoutedExperts)
    assert isinstance(other, AscendRoutedExperts)
    x, ids = torch.randn(3, HIDDEN), torch.tensor([[0, 1], [1, 0], [1, 1]])
    weights = torch.rand(3, 2)
    got = experts.forward_tokens(x, weights, ids)
    assert_close(got, other.forward_tokens(x, weights, ids), scale=8)
    assert {one.name for one in made.schemes} == {"mxfp8"}


def test_all_problems_of_the_tensors_at_once(
    stored: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]],
) -> None:
    quantised = dict(stored[0])
    del quantised["q.weight_scale_inv"]
    quantised["k.weight_scale"] = quantised.pop("k.weight_scale_inv")
    quantised["experts.1.w2.weight_scale_inv"] = torch.full((HIDDEN, 1), 255, dtype=torch.uint8)
    quantised["gate.weight_scale_inv"] = torch.zeros(EXPERTS, 2, dtype=torch.uint8)
    made = forms()
    with pytest.raises(CheckpointError) as error:
        made.table.load(model_of(table(), made, EXPERT), quantised.items())
    text = str(error.value)
    assert "missing q.weight_scale_inv [64, 2]" in text
    assert "missing k.weight_scale_inv [32, 2] (closest: k.weight_scale)" in text
    assert "experts.1.w2.weight_scale_inv: " in text
    assert "unexpected gate.weight_scale_inv [2, 2]" in text


def test_a_packed_layer_of_two_schemes_is_a_problem() -> None:
    config = {"quantization_config": {"quant_method": "mxfp8", "ignored_layers": ["k"]}}
    (problem,) = forms(config).problems
    assert "k is not quantised" in problem
    assert "they are computed as one layer" in problem
