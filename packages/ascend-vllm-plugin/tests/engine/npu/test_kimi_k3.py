"""Kimi-K3's text model on the simulated NPU against its formulas, in graphs."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.simulated_npu import counters

from ..harness import Checkpoints, EnginePool, assert_all_match
from ..test_kimi_k3 import SHAPES, TEXT, oracle_of, requests_of
from .test_kimi_linear import settings

pytestmark = pytest.mark.engine_npu


def test_a_ragged_batch_in_chunks_and_graphs(engines: EnginePool, checkpoints: Checkpoints) -> None:
    """With three of its own drafts a step, whose verification is replayed."""
    drafts = {"method": "mtp", "num_speculative_tokens": 3}
    engine = engines.get("k3", **settings(8, 16), speculative_config=drafts, **TEXT)
    oracle = oracle_of(checkpoints, "k3")
    before_drafts = engine.metric("vllm:spec_decode_num_accepted_tokens")
    requests = requests_of(oracle, SHAPES)
    before = counters()
    with engine.scheduling_at_most(100):
        assert_all_match(oracle, requests, engine.run(requests))
    assert (counters() - before).replays >= 2
    assert engine.metric("vllm:spec_decode_num_accepted_tokens") > before_drafts
