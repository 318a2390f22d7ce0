"""Kimi-Linear on the simulated NPU against transformers, in graphs, with and without drafts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_ops_core.testing.simulated_npu import counters

from ..harness import Checkpoints, EnginePool, Request, assert_all_match
from ..test_kimi_linear import NAME, SPECULATION, Prophet, oracle_of, requests_of

pytestmark = pytest.mark.engine_npu

SHAPES = [(1, 8, 0), (129, 6, 0), (64, 10, 1), (65, 8, 3), (270, 5, 4)]


def settings(*sizes: int) -> dict[str, Any]:
    """Prefix caching and graphs of decode steps of so many tokens."""
    return {
        "enable_prefix_caching": True,
        "enforce_eager": False,
        "max_num_seqs": 8,
        "compilation_config": {
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": list(sizes),
        },
    }


def test_a_ragged_batch_in_chunks(engines: EnginePool, checkpoints: Checkpoints) -> None:
    """And a prefix of whole blocks, from the states at their ends."""
    engine, oracle = engines.get(NAME, **settings(2, 4)), oracle_of(checkpoints)
    assert {cache.device for cache in engine.caches.values()} == {torch.device("npu", 0)}
    assert engine.runner.model.captured_sizes == [2, 4]
    requests = requests_of(oracle, SHAPES)
    before = counters()
    with engine.scheduling_at_most(100):
        assert_all_match(oracle, requests, engine.run(requests))
    assert (counters() - before).replays >= 5
    again = [Request(requests[-1].prompt, 6)]
    results = engine.run(again)
    assert results[0].cached == engine.engine.vllm_config.cache_config.block_size == 256
    assert_all_match(oracle, again, results)


def test_rejected_drafts_leave_no_trace(
    engines: EnginePool, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts that are right up to any place, beside chunks, and across the end of a block."""
    engine = engines.get(NAME, **settings(4, 8, 16), speculative_config=SPECULATION)
    oracle = oracle_of(checkpoints)
    requests = requests_of(oracle, [(1, 12, 0), (240, 30, 0), (65, 10, 1)])
    monkeypatch.setattr(engine.runner.drafter, "propose", Prophet(oracle, requests))
    before, accepted = counters(), engine.metric("vllm:spec_decode_num_accepted_tokens")
    with engine.scheduling_at_most(100):
        results = engine.run(requests)
    assert engine.metric("vllm:spec_decode_num_accepted_tokens") > accepted + 10
    assert (counters() - before).replays > 0
    assert_all_match(oracle, requests, results)
    again = [Request(requests[1].prompt + results[1].tokens, 4)]
    results = engine.run(again)
    assert results[0].cached == 256
    assert_all_match(oracle, again, results)
