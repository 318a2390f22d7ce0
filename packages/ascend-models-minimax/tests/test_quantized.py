"""Quantised checkpoints in every rank's parts: what is held stands for the dequantised slice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ascend_attention.layers.qkv_indexer import (
    AscendMiniMaxM3IndexerLinear,
    QKVIndexerShape,
    QKVParallelLinearWithIndexer,
)
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_fused_moe.quantized_rules import WeightForms, finish_weights
from ascend_fused_moe.testing.table_model import ExpertSizes, model_of
from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.quantization import layers_apart, resolver_of
from ascend_models_minimax.minimax_m3.sharding import Shard
from ascend_models_minimax.minimax_m3.vision.config import VisionSpec
from ascend_models_minimax.minimax_m3.vision.weights import whole_table
from ascend_models_minimax.minimax_m3.weights import main_table, mtp_table
from ascend_models_minimax.testing import M3_SPECS, write_m3_checkpoint
from ascend_models_minimax.testing.quantized_m3 import LAYOUTS, quantise_m3_checkpoint
from ascend_ops_core import InvalidInputError
from ascend_ops_core.checkpoint.table import CheckpointError, WeightTable
from ascend_ops_core.quantized_weights import QuantizationResolver
from ascend_ops_core.quantized_weights.weight import QuantizedWeight
from ascend_ops_core.testing import assert_close
from safetensors.torch import load_file

ROOT = "language_model."
TINY = replace(
    M3_SPECS["m3"], dense_intermediate_size=64, intermediate_size=64, num_local_experts=4
)
CONFIG = TINY.published_config()
SPEC = MiniMaxM3Spec.from_config(CONFIG)
# Attention and the network of the five main layers: two weights each, and two of shared experts.
HELD = 5 * 2 + 2 * 2 + 3 * 2


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_m3_checkpoint(TINY, tmp_path_factory.mktemp("plain"))


@pytest.fixture(params=list(LAYOUTS))
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def shard_of(size: int = 1, rank: int = 0) -> Shard:
    part = SPEC.vocab_size // size
    return Shard.of(SPEC, size, rank, (rank * part, (rank + 1) * part))


def described(folder: Path) -> tuple[QuantizationResolver, frozenset[int]]:
    resolver = resolver_of(json.loads((folder / "config.json").read_text()), folder)
    return resolver, layers_apart(SPEC, resolver, ROOT)


def whole(shard: Shard, apart: frozenset[int]) -> WeightTable:
    return whole_table(main_table(SPEC, shard, ROOT, apart=apart), VisionSpec.from_config(CONFIG))


def sizes(size: int = 1, rank: int = 0) -> ExpertSizes:
    return ExpertSizes(SPEC.num_local_experts, SPEC.hidden_size, SPEC.intermediate_size, rank, size)


def write(
    plain: Path, tmp_path: Path, layout: str
) -> tuple[Path, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Folder and tensors of the quantised checkpoint, and the dequantised tensors."""
    quantised, dequantised = tmp_path / "quantised", tmp_path / "dequantised"
    quantise_m3_checkpoint(plain, quantised, dequantised, layout)
    file = "model.safetensors"
    return quantised, load_file(quantised / file), load_file(dequantised / file)


@pytest.mark.parametrize("size", [1, 2])
def test_every_rank_holds_what_the_dequantised_slice_is(
    plain: Path, tmp_path: Path, layout: str, size: int
) -> None:
    folder, stored, floats = write(plain, tmp_path, layout)
    resolver, apart = described(folder)
    assert apart == ({1, 4} if layout == "mxfp8_index_kept" else set())
    x, ids = torch.randn(5, SPEC.hidden_size), torch.randint(4, (5, 2))
    weights = torch.rand(5, 2)
    for rank in range(size):
        table = whole(shard_of(size, rank), apart)
        forms = WeightForms(table, resolver)
        assert forms.problems == []
        expected = model_of(table, None, sizes(size, rank))
        table.load(expected, floats.items())
        model = model_of(table, forms, sizes(size, rank))
        filled = forms.table.load(model, stored.items())
        assert filled == {name for name, _ in model.named_parameters()}
        finish_weights(model)
        others, seen = dict(expected.named_parameters()), 0
        for name, module in model.named_modules():
            if isinstance(module, QuantizedWeight):
                assert_close(module(torch.eye(module.shape[1])).T, others.pop(name))
                seen += 1
            if isinstance(module, AscendRoutedExperts):
                other = expected.get_submodule(name)
                assert isinstance(other, AscendRoutedExperts)
                got = module.forward_tokens(x, weights, ids)
                assert_close(got, other.forward_tokens(x, weights, ids), scale=8)
                for part in ("w13", "w2"):
                    del others[f"{name}.{part}"]
        assert seen == HELD
        kept = {n: p for n, p in model.named_parameters() if n in others}
        assert set(kept) == set(others)
        assert any(name.endswith("indexer_proj.weight") for name in kept) == bool(apart)
        for name, value in kept.items():
            assert torch.equal(value, others[name]), name


def test_the_draft_is_checked_in_its_own_form(plain: Path, tmp_path: Path, layout: str) -> None:
    folder, stored, _ = write(plain, tmp_path, layout)
    resolver, apart = described(folder)
    forms = WeightForms(mtp_table(SPEC, shard_of(), ROOT, apart=apart), resolver)
    assert forms.problems == []
    found = {name: (tuple(t.shape), t.dtype) for name, t in stored.items()}
    assert forms.table.problems(found) == []
    param = f"model.layers.{SPEC.num_hidden_layers}.transformer_layer"
    assert forms.held(f"{param}.self_attn.qkv_proj.weight") is not None
    assert forms.experts(f"{param}.block_sparse_moe.experts") is not None
    assert forms.held(f"model.layers.{SPEC.num_hidden_layers}.eh_proj") is None


def test_every_problem_is_listed_at_once(plain: Path, tmp_path: Path) -> None:
    folder, stored, _ = write(plain, tmp_path, "mxfp8")
    resolver, apart = described(folder)
    forms = WeightForms(whole(shard_of(), apart), resolver)
    layer = f"{ROOT}model.layers.2"
    stored[f"{layer}.self_attn.q_proj.weight_scale"] = stored.pop(
        f"{layer}.self_attn.q_proj.weight_scale_inv"
    )
    expert = f"{layer}.block_sparse_moe.experts.3.w2"
    del stored[f"{expert}.weight_scale_inv"]
    stored[f"{expert}.weight"] = torch.zeros(96, 64)
    stored[f"{layer}.block_sparse_moe.shared_experts.up_proj.weight_scale_inv"].fill_(255)
    stored["vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight_scale_inv"] = torch.zeros(
        96, 2, dtype=torch.uint8
    )
    with pytest.raises(CheckpointError, match=r"6 problem\(s\)") as caught:
        forms.table.load(model_of(whole(shard_of(), apart), forms, sizes()), stored.items())
    for line in (
        f"missing {layer}.self_attn.q_proj.weight_scale_inv [256, 3] (closest: {layer}.self_attn."
        "q_proj.weight_scale)",
        f"unexpected {layer}.self_attn.q_proj.weight_scale [256, 3]",
        f"missing {expert}.weight_scale_inv [96, 2]",
        f"dtype of {expert}.weight is float32",
        "up_proj.weight_scale_inv: ",
        "unexpected vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight_scale_inv",
    ):
        assert line in str(caught.value)


@pytest.mark.parametrize(
    ("ignored", "named"),
    [
        ("re:.*layers\\.1\\.self_attn\\.k_proj", "layers.1.self_attn.k_proj is not quantised"),
        ("re:.*layers\\.4\\.self_attn\\.index_k", "layers.4.self_attn.index_k_proj is not quant"),
        (f"{ROOT}model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj is not quantised"),
    ],
)
def test_projections_that_disagree_are_named(ignored: str, named: str) -> None:
    config = {"quantization_config": {"quant_method": "mxfp8", "ignored_layers": [ignored]}}
    resolver = resolver_of(config, Path("nowhere"))
    apart = layers_apart(SPEC, resolver, ROOT)
    assert apart == frozenset()
    problems = WeightForms(whole(shard_of(), apart), resolver).problems
    assert any(named in line and "computed as one layer" in line for line in problems)


def test_index_projections_of_their_own_are_those_of_one_product() -> None:
    """Rank 1 of 4 with two key-value heads, so that two ranks hold one of them."""
    together = QKVIndexerShape(16, 8, 2, 6, 3, 4, 1)
    apart = replace(together, index_apart=True)
    given = {name: torch.randn(part.total, 16) for name, part in together.parts.items()}
    one = QKVParallelLinearWithIndexer(together, torch.float32)
    two = QKVParallelLinearWithIndexer(apart, torch.float32)
    index = AscendMiniMaxM3IndexerLinear(apart, torch.float32)
    for name, tensor in given.items():
        one.weight_loader(tensor, name)
        (index if name.startswith("index") else two).weight_loader(tensor, name)
    x = torch.randn(5, 16)
    expected, parts, (query, key) = one(x), two(x), index(x)
    got = parts._replace(index_query=query, index_key=key)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(InvalidInputError, match=r"'q'.*index_q, index_k"):
        index.weight_loader(given["q"], "q")
    with pytest.raises(InvalidInputError, match="index_apart"):
        QKVIndexerShape(16, 8, 2, 6, index_apart=True)
