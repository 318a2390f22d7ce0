"""vLLM's wrapper of latent attention in our form, against transformers' module."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing import assert_close

pytestmark = pytest.mark.engine

HEADS, HIDDEN, EPS, THETA = 3, 32, 1e-6, 1e4
LATENT, NOPE, ROPE, VALUE = 24, 12, 8, 10
PREFIX = "model.layers.1.self_attn"
ROWS = 16


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one: that of an engine that other tests keep alive here, or a new one."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import cleanup_dist_env_and_memory, parallel_state

    if parallel_state.model_parallel_is_initialized():
        yield
        return
    place = tmp_path_factory.mktemp("group") / "rendezvous"
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(1, 0, f"file://{place}", 0, "gloo")
        parallel_state.initialize_model_parallel(1)
    yield
    cleanup_dist_env_and_memory()


@pytest.fixture
def vllm_config(group: None) -> Iterator[Any]:
    """An engine's config, current."""
    from vllm.config import VllmConfig, set_current_vllm_config

    config: Any = VllmConfig()
    config.cache_config.block_size = ROWS
    config.model_config = SimpleNamespace(is_hybrid=False)
    with set_current_vllm_config(config), torch.inference_mode():
        yield config


def _oracle(q_rank: int | None) -> tuple[Any, Any]:
    """transformers' module with random weights, and its rotation."""
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as upstream

    config = DeepseekV3Config(
        hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=HEADS,
        q_lora_rank=q_rank, kv_lora_rank=LATENT, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE,
        v_head_dim=VALUE, rope_theta=THETA, rms_norm_eps=EPS, attn_implementation="eager",
    )  # fmt: skip
    module = upstream.DeepseekV3Attention(config, 1)
    new = torch.Generator().manual_seed(7)
    for name, weight in module.named_parameters():
        noise = torch.randn(weight.shape, generator=new)
        weight.data = 1 + 0.1 * noise if "norm" in name else noise / weight.shape[-1] ** 0.5
    return module.eval(), upstream.DeepseekV3RotaryEmbedding(config)


def definition(q_rank: int | None, hidden: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    """``[T, HIDDEN]`` of one request, queries multiplied by a factor."""
    module, rotary = _oracle(q_rank)
    module.scaling *= factor
    tokens = hidden.shape[0]
    mask = torch.full((tokens, tokens), float("-inf")).triu(1)[None, None]
    angles = rotary(hidden[None], torch.arange(tokens)[None])
    return module(hidden[None], position_embeddings=angles, attention_mask=mask)[0][0]


def _modules(q_rank: int | None, **replaced: Any) -> Any:
    """What one of vLLM's models makes in front of its wrapper."""
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.layers.linear import (
        ColumnParallelLinear,
        MergedColumnParallelLinear,
        ReplicatedLinear,
        RowParallelLinear,
    )
    from vllm.model_executor.layers.mla import MLAModules
    from vllm.model_executor.layers.rotary_embedding import get_rope

    plain = {"bias": False}
    queries = HEADS * (NOPE + ROPE)
    own: dict[str, Any] = dict.fromkeys(
        ("fused_qkv_a_proj", "kv_a_proj_with_mqa", "q_a_layernorm", "q_b_proj", "q_proj")
    )
    if q_rank is None:
        own["q_proj"] = ColumnParallelLinear(HIDDEN, queries, **plain, prefix="q_proj")
        own["kv_a_proj_with_mqa"] = ReplicatedLinear(HIDDEN, LATENT + ROPE, **plain, prefix="a")
    else:
        own["fused_qkv_a_proj"] = MergedColumnParallelLinear(
            HIDDEN, [q_rank, LATENT + ROPE], **plain, prefix="a", disable_tp=True
        )
        own["q_a_layernorm"] = RMSNorm(q_rank, eps=EPS)
        own["q_b_proj"] = ColumnParallelLinear(q_rank, queries, **plain, prefix="q_b_proj")
    rope = {"rope_type": "default", "rope_theta": THETA}
    own |= {
        "kv_a_layernorm": RMSNorm(LATENT, eps=EPS),
        "kv_b_proj": ColumnParallelLinear(
            LATENT, HEADS * (NOPE + VALUE), **plain, prefix=f"{PREFIX}.kv_b_proj"
        ),
        "rotary_emb": get_rope(ROPE, 512, is_neox_style=False, rope_parameters=rope),
        "o_proj": RowParallelLinear(HEADS * VALUE, HIDDEN, **plain, prefix="o_proj"),
        "indexer": None,
        "is_sparse": False,
        "topk_indices_buffer": None,
    }
    return MLAModules(**(own | replaced))


def _layer(q_rank: int | None, modules: Any, **settings: Any) -> Any:
    from ascend_attention.vllm import register
    from vllm.model_executor.layers.mla import MultiHeadLatentAttentionWrapper

    register()
    scale = (NOPE + ROPE) ** -0.5
    return MultiHeadLatentAttentionWrapper(
        HIDDEN, HEADS, scale, NOPE, ROPE, VALUE, q_rank, LATENT, modules,
        prefix=PREFIX, **settings,
    )  # fmt: skip


def _loaded(q_rank: int | None) -> Any:
    from ascend_attention.vllm.mla.wrapper import AscendMultiHeadLatentAttentionWrapper

    layer = _layer(q_rank, _modules(q_rank))
    assert type(layer) is AscendMultiHeadLatentAttentionWrapper
    module, _ = _oracle(q_rank)
    merged = {"q_a_proj": ("fused_qkv_a_proj", 0)}
    if q_rank is not None:
        merged["kv_a_proj_with_mqa"] = ("fused_qkv_a_proj", 1)
    for name, value in module.state_dict().items():
        own, *part = merged.get(name.removesuffix(".weight"), (name.removesuffix(".weight"),))
        weight = getattr(layer, own).weight
        load = getattr(weight, "weight_loader", lambda weight, given: weight.data.copy_(given))
        load(weight, value, *part)
    for part in layer.modules():
        if hasattr(part, "quant_method"):
            part.quant_method.process_weights_after_loading(part)
    return layer


def _steps(vllm_config: Any, q_rank: int | None, *, split: bool) -> None:
    """Three requests in random chunks, with padding rows, over blocks in any order."""
    from ascend_attention.step import StepLayout
    from ascend_attention.vllm.mla.metadata import build_metadata
    from vllm.forward_context import set_forward_context

    layer, choose = _loaded(q_rank), random.Random(5)
    layer.weights.split = split
    new = torch.Generator().manual_seed(9)
    tokens = [torch.randn(n, HIDDEN, generator=new) for n in (70, 1, 33)]
    wanted = [[definition(q_rank, one, factor) for one in tokens] for factor in (1.0, 0.5)]
    blocks = torch.randperm(3 * 5, generator=new).view(3, 5)
    layer.cache.bind_kv_cache(torch.full((15, ROWS, LATENT + ROPE), float("nan")))
    done = [0] * 3
    while any(d < len(one) for d, one in zip(done, tokens, strict=True)):
        lengths = [
            choose.randint(0, min(len(one) - d, 30)) for d, one in zip(done, tokens, strict=True)
        ]
        ends = torch.tensor([0, *lengths]).cumsum(0)
        seen = torch.tensor([d + n for d, n in zip(done, lengths, strict=True)])
        layout = StepLayout.build(ends, seen, torch.device("cpu"))
        positions = [d + i for d, n in zip(done, lengths, strict=True) for i in range(n)]
        requests = [r for r, n in enumerate(lengths) for _ in range(n)]
        slots = [
            int(blocks[r, at // ROWS]) * ROWS + at % ROWS
            for r, at in zip(requests, positions, strict=True)
        ]
        meta = build_metadata(layout, blocks, torch.tensor(slots, dtype=torch.int64), ROWS)
        padding = choose.randint(0, 2)
        given = [one[d : d + n] for one, d, n in zip(tokens, done, lengths, strict=True)]
        hidden = torch.cat([*given, torch.full((padding, HIDDEN), 3.0)])
        at = torch.tensor(positions + [0] * padding, dtype=torch.int64)
        deferred = SimpleNamespace(get=lambda meta=meta: meta)
        with set_forward_context({layer.cache.prefix: deferred}, vllm_config):
            halved = torch.full((len(at), 1, 1), 0.5)
            results = layer(at, hidden), layer(at, hidden, halved)
        for found, whole in zip(results, wanted, strict=True):
            rows = [one[d : d + n] for one, d, n in zip(whole, done, lengths, strict=True)]
            assert_close(found[: len(positions)], torch.cat(rows), scale=4)
            assert found[len(positions) :].eq(0).all()
        done = seen.tolist()
    # A dummy run knows no caches.
    with set_forward_context(None, vllm_config):
        assert layer(torch.zeros(3, dtype=torch.int64), tokens[0][:3]).eq(0).all()


def test_what_is_not_taken_is_refused(vllm_config: Any) -> None:
    """Each names what it is, before a cache is declared."""
    from torch import nn

    modules = _modules(None)
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("with an indexer", {"indexer": nn.Identity(), "is_sparse": True}, {}),
        ("those behind them", {}, {"non_causal_multi_token_decode": True}),
        ("no RMS norm", {"kv_a_layernorm": nn.LayerNorm(LATENT)}, {}),
        ("rotation of .* by Identity", {"rotary_emb": nn.Identity()}, {}),
        (
            "kv_b_proj quantised by object",
            {"kv_b_proj": SimpleNamespace(quant_method=object())},
            {},
        ),
    ]
    for text, replaced, settings in cases:
        with pytest.raises(InvalidInputError, match=text):
            _layer(None, _modules(None, **replaced), **settings)
    vllm_config.cache_config.cache_dtype = "fp8"
    with pytest.raises(InvalidInputError, match=r"kv_cache_dtype='fp8'.*unset"):
        _layer(None, modules)
    vllm_config.cache_config.cache_dtype = "auto"
    vllm_config.parallel_config.decode_context_parallel_size = 2
    with pytest.raises(InvalidInputError, match="decode_context_parallel_size=2"):
        _layer(None, modules)
    vllm_config.parallel_config.decode_context_parallel_size = 1
    vllm_config.model_config = SimpleNamespace(hf_text_config=SimpleNamespace(index_topk=64))
    with pytest.raises(InvalidInputError, match="index_topk=64"):
        _layer(None, modules)
    assert not vllm_config.compilation_config.static_forward_context


@pytest.mark.parametrize(
    ("q_rank", "hybrid", "split"), [(20, False, False), (20, False, True), (None, True, False)]
)
def test_steps_equal_transformers(
    vllm_config: Any, q_rank: int | None, hybrid: bool, split: bool
) -> None:
    """Also where pairs lie half-split, as torch_npu's operator leaves them."""
    vllm_config.model_config = SimpleNamespace(is_hybrid=hybrid)
    _steps(vllm_config, q_rank, split=split)
