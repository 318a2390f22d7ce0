"""Every tensor of a Kimi-K3 checkpoint has one place: in the model, its draft, or its tower."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_fused_moe.quantized_rules import WeightForms
from ascend_models_kimi.kimi_k3.mtp_weights import check_drafts, mtp_table
from ascend_models_kimi.kimi_k3.vision.config import VisionSpec
from ascend_models_kimi.kimi_k3.vision.weights import text_table, whole_table
from ascend_models_kimi.kimi_linear.config import KimiLinearSpec
from ascend_models_kimi.kimi_linear.quantization import LAYER_RULES, restore_description
from ascend_models_kimi.kimi_linear.sharding import Shard
from ascend_models_kimi.kimi_linear.weights import main_table
from ascend_models_kimi.testing.mxfp4 import pack_mxfp4
from ascend_models_kimi.testing.tiny_k3 import K3_SPECS, TinyK3Spec, k3_tensors
from ascend_ops_core import InvalidInputError
from ascend_ops_core.checkpoint.table import CheckpointError, WeightTable
from ascend_ops_core.quantized_weights import QuantizationResolver
from torch import nn

ROOT = "language_model."


def found(tiny: TinyK3Spec) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Headers of the checkpoint."""
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in k3_tensors(tiny).items():
        if tiny.quantized and ".experts." in name:
            stored[f"{name}_packed"], stored[f"{name}_scale"] = pack_mxfp4(tensor)
        else:
            stored[name] = tensor
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in stored.items()}


def tables(tiny: TinyK3Spec) -> tuple[WeightTable, WeightTable, VisionSpec]:
    config = tiny.published_config()
    spec = KimiLinearSpec.from_config(config)
    shard = Shard.of(spec, 1, 0, (0, spec.vocab_size))
    resolver = QuantizationResolver.of(config["text_config"], LAYER_RULES)
    forms = [WeightForms(t(spec, shard, ROOT), resolver) for t in (main_table, mtp_table)]
    assert not any(one.problems for one in forms)
    return forms[0].table, forms[1].table, VisionSpec.from_config(config)


@pytest.mark.parametrize("name", [*K3_SPECS, "k3_drafts"])
def test_every_tensor_has_a_place(name: str) -> None:
    tiny = K3_SPECS["k3"] if name == "k3_drafts" else K3_SPECS[name]
    if name == "k3_drafts":
        tiny = replace(tiny, mtp="random", num_nextn_predict_layers=2, quantized=True)
    headers = found(tiny)
    main, drafts, vision = tables(tiny)
    assert main.problems(headers) == []
    assert drafts.problems(headers) == []
    whole = whole_table(text_table(main, "language_model"), vision)
    assert whole.problems(headers) == []
    draft = f"{ROOT}model.layers.{tiny.num_hidden_layers}."
    read = set(whole.rules) | set(drafts.rules)
    shared = [n for n in headers if "embed_tokens" in n or "shared_head.head" in n]
    assert set(headers) - read == {n for n in shared if n.startswith(f"{ROOT}model.layers.")}
    assert bool(drafts.rules) == (tiny.drafts > 0)
    assert all(n.startswith(draft[:-2]) for n in drafts.rules)


def test_a_tensor_that_is_missing_or_strange_is_named() -> None:
    main, _, vision = tables(K3_SPECS["k3_mxfp4"])
    whole = whole_table(text_table(main, "language_model"), vision)
    headers = found(K3_SPECS["k3_mxfp4"])
    lost = f"{ROOT}model.layers.1.block_sparse_moe.experts.3.w2.weight_scale"
    for name in (lost, "vision_tower.encoder.blocks.0.wo.weight"):
        del headers[name]
    headers[f"{ROOT}model.layers.0.mlp_res_norm.bias"] = ((96,), torch.float32)
    problems = "\n".join(whole.problems(headers))
    assert f"missing {lost}" in problems
    assert "missing vision_tower.encoder.blocks.0.wo.weight" in problems
    assert f"unexpected {ROOT}model.layers.0.mlp_res_norm.bias" in problems


def test_a_text_model_within_another_is_filled() -> None:
    inner = nn.Module()
    inner.weight = nn.Parameter(torch.zeros(2, 3), requires_grad=False)
    outer = nn.Module()
    outer.text = inner
    rules = WeightTable({}, ("nothing",))
    tiny, _, _ = tables(K3_SPECS["k3"])
    rule = replace(tiny.rules[f"{ROOT}model.norm.weight"], shape=(2, 3), param="weight")
    rules.rules["a"] = rule
    filled = text_table(rules, "text").load(outer, [("a", torch.ones(2, 3))])
    assert filled == {"text.weight"}
    assert bool((inner.weight == 1).all())
    with pytest.raises(CheckpointError, match=r"shape of a is \[3\]"):
        text_table(rules, "text").load(outer, [("a", torch.ones(3))])


def test_drafts_that_are_not_there() -> None:
    spec = KimiLinearSpec.from_config(K3_SPECS["k3_odd"].published_config())
    with pytest.raises(InvalidInputError, match="num_nextn_predict_layers=0"):
        check_drafts(spec)


def test_vllm_s_rewritten_description_is_read_as_it_was() -> None:
    given: Any = K3_SPECS["k3_mxfp4"].text_config()["quantization_config"]
    config = SimpleNamespace(quantization_config=copy.deepcopy(given))
    restore_description(config)
    assert config.quantization_config == given
    config.quantization_config["quant_method"] = "mxfp4"
    restore_description(config)
    assert config.quantization_config == given
    own = SimpleNamespace(quantization_config={"quant_method": "mxfp4"})
    restore_description(own)
    assert own.quantization_config == {"quant_method": "mxfp4"}
    restore_description(SimpleNamespace())


def test_decays_padded_to_the_channels_of_a_head() -> None:
    """As they are published: the heads' values come first, and only zeros may follow."""
    tiny = K3_SPECS["k3"]
    spec = KimiLinearSpec.from_config(tiny.published_config())
    name = f"{ROOT}model.layers.0.self_attn.A_log"
    stored = k3_tensors(tiny)[name]
    assert stored.shape == (tiny.kda_head_dim,)
    held = []
    for rank in range(2):
        shard = Shard.of(spec, 2, rank, (0, spec.vocab_size))
        rule = replace(main_table(spec, shard, ROOT).rules[name], param="a_log")
        module = nn.Module()
        module.a_log = nn.Parameter(torch.zeros(2), requires_grad=False)
        rule.load(stored, module)
        held.append(module.a_log)
        assert rule.value_problems(name, stored) == []
    assert torch.equal(torch.cat(held), stored[:4])
    assert not {(5,), (31,), (1, 1, 32, 1)} & set(rule.shapes)
    strange = stored.clone()
    strange[-1] = 1
    (problem,) = rule.value_problems(name, strange)
    assert problem == f"{name} has 1 values behind its 4 heads that are not zero"


@pytest.mark.parametrize(
    ("ranks", "changes", "message"),
    [
        (3, {}, "tensor_parallel_size=3.*num_attention_heads=4.*Use one of"),
        (2, {"kda_heads": 3}, r"linear_attn_config.num_heads=3.*Use one of \[1\]"),
        (2, {"moe_intermediate_size": 33}, "moe_intermediate_size=33"),
    ],
)
def test_ranks_that_cannot_share_the_model(
    ranks: int, changes: dict[str, Any], message: str
) -> None:
    config = replace(K3_SPECS["k3"], **changes).published_config()
    with pytest.raises(InvalidInputError, match=message):
        Shard.of(KimiLinearSpec.from_config(config), ranks, 0, (0, 512))
