"""Llama, Qwen3 and Mistral on the simulated NPU against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_attention.vllm.dense import AscendAttentionBackendImpl
from ascend_models_deepseek.testing import random_prompt
from ascend_ops_core.testing.simulated_npu import counters

from ..harness import Checkpoints, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine_npu

VOCAB = 300
GRAPHS: dict[str, Any] = {
    "enforce_eager": False,
    "max_num_seqs": 8,
    "compilation_config": {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [2, 8],
    },
}


def ragged(seed: int) -> list[Request]:
    """Lengths around a block of 128 tokens, joining and finishing at different steps."""
    shapes = ((1, 12, 0), (127, 6, 0), (17, 10, 1), (128, 6, 2), (129, 8, 3), (300, 8, 4))
    return [Request(random_prompt(n, VOCAB, seed=seed + n), count, at) for n, count, at in shapes]


def test_llama_in_chunks_and_with_a_cached_prefix(
    engines: EnginePool, checkpoints: Checkpoints
) -> None:
    engine = engines.get("llama", enable_prefix_caching=True)
    layers = engine.engine.vllm_config.compilation_config.static_forward_context.values()
    assert {type(layer.impl) for layer in layers} == {AscendAttentionBackendImpl}
    assert {cache.device for cache in engine.caches.values()} == {torch.device("npu", 0)}
    assert engine.engine.vllm_config.cache_config.block_size == 128
    requests = ragged(200)
    with engine.scheduling_at_most(90):
        results = engine.run(requests)
    assert_all_match(checkpoints.oracle("llama"), requests, results)
    again = [Request([*requests[-1].prompt[:290], *random_prompt(9, VOCAB, seed=1)], 6)]
    results = engine.run(again)
    assert results[0].cached == 256
    assert_all_match(checkpoints.oracle("llama"), again, results)


def test_qwen3_in_graphs(engines: EnginePool, checkpoints: Checkpoints) -> None:
    engine = engines.get("qwen3", **GRAPHS)
    assert engine.runner.model.captured_sizes == [2, 8]
    requests = ragged(300)
    before = counters()
    results = engine.run(requests)
    assert (counters() - before).replays >= 5
    assert_all_match(checkpoints.oracle("qwen3"), requests, results)


def test_mistral_s_window_and_preemption(engines: EnginePool, checkpoints: Checkpoints) -> None:
    engine = engines.get(
        "mistral",
        max_model_len=512,
        num_gpu_blocks_override=5,
        max_num_batched_tokens=256,
        max_num_seqs=3,
    )
    shapes = ((120, 12), (124, 10), (125, 8), (250, 3))
    requests = [Request(random_prompt(n, VOCAB, seed=n), count) for n, count in shapes]
    before = engine.metric("vllm:num_preemptions")
    results = engine.run(requests)
    assert engine.metric("vllm:num_preemptions") > before
    assert_all_match(checkpoints.oracle("mistral"), requests, results)
