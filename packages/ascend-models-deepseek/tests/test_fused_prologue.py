"""Layers whose work in front of attention one operator does, and where they may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from ascend_attention.layers.context_parallel import ContextParallel
from ascend_attention.layers.mla import MLAShape
from ascend_attention.layers.token_indexer import IndexerShape
from ascend_attention.vllm.mla import MLAAttention
from ascend_attention.vllm.mla.latent_layer import fuse_prologues
from ascend_attention.vllm.sfa import SFAAttention
from ascend_models_deepseek.testing.attention_layers import (
    STEPS,
    Engine,
    Layers,
    inputs,
    without_engine,
)
from ascend_ops_core.testing import assert_close
from torch import nn

V3 = MLAShape(7168, 8, 1536, 512, 128, 64, 128, 0.1, 1e-6)
INDEXER = IndexerShape(7168, 1536, 64, 128, 64, 2048, False)


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Layers are built and run without an engine."""
    return without_engine(monkeypatch.setattr)


def outputs(kind: str, how: str, metadata: dict[str, Any]) -> list[torch.Tensor]:
    """Results of all steps, those of padding included."""
    layers = Layers(kind, 0, 1, None)
    for layer in layers.layers:
        layer.weights.split = how == "split"
        if how == "fused":
            layer.weights.fuse()
    engine = Engine(layers, None, metadata)
    return [
        engine.step(counts, special, *inputs(counts, number))
        for number, (counts, special) in enumerate(STEPS)
    ]


@pytest.mark.parametrize("how", ["split", "fused"])
@pytest.mark.parametrize("kind", ["mla", "shared"])
@torch.inference_mode()
def test_layers_give_the_same_in_either_layout_and_fused(
    kind: str, how: str, metadata: dict[str, Any]
) -> None:
    expected = outputs(kind, "", metadata)
    for got, want in zip(outputs(kind, how, metadata), expected, strict=True):
        assert want.abs().max() > 0.1
        assert_close(got, want.double(), scale=8)


def test_a_dummy_run_gives_zeros(metadata: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("mla", "sfa"):
        layer = Layers(kind, 0, 1, None).layers[0]
        layer.weights.fuse()
        monkeypatch.setattr(layer.cache, "metadata", lambda: None)
        assert not layer(torch.randn(3, 32), torch.ones(3, 2), torch.zeros(3, 2)).any()


def built(sparse: bool, shape: MLAShape, **given: Any) -> Any:
    """A layer of published sizes without memory."""
    settings = {"dtype": torch.bfloat16, "device": "A3", "block_tokens": 128} | given
    dtype = settings.pop("dtype")
    with torch.device("meta"):
        if sparse:
            return SFAAttention(shape, INDEXER, dtype, "x.0", **settings)
        return MLAAttention(shape, dtype, "x.0", **settings)


@pytest.mark.parametrize("sparse", [False, True])
def test_published_sizes_are_fused_and_held_once(sparse: bool, metadata: dict[str, Any]) -> None:
    layer = built(sparse, V3)
    assert layer.weights.split
    before = sum(one.numel() for one in layer.weights.parameters())
    fuse_prologues(nn.ModuleList([layer]))
    fused = layer.weights.fused
    assert [list(one.shape) for one in fused] == [
        [7168, 1536], [1536, 1536], [8, 128, 512], [7168, 576], [1536], [512],
    ]  # fmt: skip
    assert all(one.dtype == torch.bfloat16 for one in fused)
    after = [*layer.weights.parameters(), *layer.weights.buffers()]
    # Norms are held twice, in both dtypes.
    assert sum(one.numel() for one in after) == before + 1536 + 512
    # vLLM asks of every parameter whether it was loaded.
    assert {name for name, _ in layer.weights.named_parameters()} == {
        "q_a_norm", "kv_a_norm", "kv_b", "o",
    }  # fmt: skip


class Quantised(nn.Module):
    """Stands for a weight that the checkpoint stores in eight bits."""


@pytest.mark.parametrize(
    ("sparse", "split", "reason", "given"),
    [
        (False, True, "contexts that ranks share", {"context": "two ranks"}),
        (False, True, "quantised projections", {"quantised": True}),
        (False, True, "half-split in the weights", {"shape": replace(V3, interleaved=False)}),
        (False, True, "queries without a latent", {"shape": replace(V3, q_lora_rank=None)}),
        (True, False, "eight bits", {"int8_latents": True}),
        (False, True, None, {"shape": replace(V3, num_heads=3)}),
        (True, True, None, {"shape": replace(V3, hidden_size=6144, q_lora_rank=2048)}),
        (False, False, None, {"block_tokens": 16, "dtype": torch.float16}),
        (False, False, None, {"dtype": torch.float32}),
        (False, False, None, {"device": "A5"}),
    ],
)
def test_other_layers_run_step_by_step(
    sparse: bool,
    split: bool,
    reason: str | None,
    given: dict[str, Any],
    metadata: dict[str, Any],
) -> None:
    given = dict(given)
    if "context" in given:
        given["context"] = object.__new__(ContextParallel)
    quantised, shape = given.pop("quantised", False), given.pop("shape", V3)
    layer = built(sparse, shape, **given)
    if quantised:
        del layer.weights.q_b
        layer.weights.q_b = Quantised()
    refusal = layer.refusal()
    assert refusal is None if reason is None else reason in refusal
    assert layer.weights.split is split
    layer.fuse_prologue()
    assert layer.weights.fused is None


def test_a_choice_that_is_forced_holds(
    metadata: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_OPS", "mla_prolog=torch,kv_rmsnorm_rope_cache=triton")
    layer = built(False, V3)
    layer.fuse_prologue()
    assert not layer.weights.split
    assert layer.weights.fused is None
