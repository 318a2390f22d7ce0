"""MiniMax-M3 on the simulated NPU against transformers, with and without graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_models_minimax.testing import M3Oracle
from ascend_ops_core.testing.simulated_npu import counters

from ..harness import Checkpoints, EnginePool, assert_all_match
from ..test_minimax_m3 import TEXT, assert_parity, requests_of

pytestmark = pytest.mark.engine_npu

GRAPHS: dict[str, Any] = {
    "enforce_eager": False,
    "max_num_seqs": 8,
    "compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [2, 4]},
}
SHAPES = [(1, 8, 0), (129, 6, 0), (16, 10, 1), (25, 8, 3), (200, 5, 4)]
NAME = "m3"


def oracle_of(checkpoints: Checkpoints) -> M3Oracle:
    oracle = checkpoints.oracle(NAME)
    assert isinstance(oracle, M3Oracle)
    return oracle


def test_a_ragged_batch_in_chunks(engines: EnginePool, checkpoints: Checkpoints) -> None:
    engine, oracle = engines.get(NAME, **TEXT), oracle_of(checkpoints)
    assert {cache.device for cache in engine.caches.values()} == {torch.device("npu", 0)}
    with engine.scheduling_at_most(100):
        assert_parity(engine, oracle, requests_of(oracle, SHAPES))


def test_replays_give_the_tokens_of_transformers(
    engines: EnginePool, checkpoints: Checkpoints
) -> None:
    engine, oracle = engines.get(NAME, **GRAPHS, **TEXT), oracle_of(checkpoints)
    assert engine.runner.model.captured_sizes == [2, 4]
    before = counters()
    assert_parity(engine, oracle, requests_of(oracle, SHAPES, seed=30))
    assert (counters() - before).replays >= 5


def test_drafts_are_the_oracle_s(engines: EnginePool, checkpoints: Checkpoints) -> None:
    settings = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}
    engine, oracle = engines.get(NAME, **settings, **TEXT), oracle_of(checkpoints)
    requests = requests_of(oracle, [(1, 10, 0), (40, 10, 0), (129, 8, 2)], seed=60)
    assert_all_match(oracle, requests, engine.run(requests))
