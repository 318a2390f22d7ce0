"""Kimi-Linear on the simulated NPU against transformers, with and without graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_ops_core.testing.simulated_npu import counters

from ..harness import Checkpoints, EnginePool, Request, assert_all_match
from ..test_kimi_linear import NAME, oracle_of, requests_of

pytestmark = pytest.mark.engine_npu

GRAPHS: dict[str, Any] = {
    "enforce_eager": False,
    "max_num_seqs": 8,
    "compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [2, 4]},
}
SHAPES = [(1, 8, 0), (129, 6, 0), (64, 10, 1), (65, 8, 3), (200, 5, 4)]


def test_a_ragged_batch_in_chunks(engines: EnginePool, checkpoints: Checkpoints) -> None:
    """And a prefix of whole blocks, from the states at their ends."""
    engine, oracle = engines.get(NAME, enable_prefix_caching=True), oracle_of(checkpoints)
    assert {cache.device for cache in engine.caches.values()} == {torch.device("npu", 0)}
    requests = requests_of(oracle, SHAPES)
    with engine.scheduling_at_most(100):
        assert_all_match(oracle, requests, engine.run(requests))
    again = [Request(requests[-1].prompt, 6)]
    results = engine.run(again)
    assert results[0].cached == 128
    assert_all_match(oracle, again, results)


def test_replays_give_the_tokens_of_transformers(
    engines: EnginePool, checkpoints: Checkpoints
) -> None:
    engine, oracle = engines.get(NAME, **GRAPHS), oracle_of(checkpoints)
    assert engine.runner.model.captured_sizes == [2, 4]
    before = counters()
    requests = requests_of(oracle, SHAPES, seed=30)
    assert_all_match(oracle, requests, engine.run(requests))
    assert (counters() - before).replays >= 5
