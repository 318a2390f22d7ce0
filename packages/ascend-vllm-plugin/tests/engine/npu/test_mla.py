"""DeepSeek-V3 on the simulated NPU against transformers, with and without graphs, and drafting."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import random_prompt
from ascend_models_deepseek.testing.oracle_v3 import V3MtpOracle
from ascend_ops_core.testing.simulated_npu import counters

from ..harness import Checkpoints, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine_npu

SPEC = "v3"
VOCAB = 512
SHAPES = [(1, 12, 0), (129, 6, 0), (17, 10, 1), (255, 6, 2), (128, 8, 3), (370, 8, 4)]
GRAPHS: dict[str, Any] = {
    "enforce_eager": False,
    "max_num_seqs": 8,
    "compilation_config": {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [3, 6, 12],
    },
}


def ragged(vocab: int = VOCAB) -> list[Request]:
    """Requests that join and finish at different steps."""
    return [Request(random_prompt(n, vocab, seed=100 + n), count, at) for n, count, at in SHAPES]


def test_a_ragged_batch_in_chunks(engines: EnginePool, checkpoints: Checkpoints) -> None:
    engine = engines.get("v3_plain", enable_prefix_caching=True)
    assert {cache.device for cache in engine.caches.values()} == {torch.device("npu", 0)}
    requests = ragged(500)
    with engine.scheduling_at_most(100):
        results = engine.run(requests)
    assert_all_match(checkpoints.oracle("v3_plain"), requests, results)
    again = [Request(requests[-1].prompt, 6)]
    results = engine.run(again)
    assert results[0].cached == 256
    assert_all_match(checkpoints.oracle("v3_plain"), again, results)


@pytest.mark.parametrize(
    ("settings", "width"), [({}, 1), (GRAPHS, 2), ({}, 3)], ids=["eager-1", "graphs-2", "eager-3"]
)
def test_drafts(
    engines: EnginePool, checkpoints: Checkpoints, settings: dict[str, Any], width: int
) -> None:
    """The target's tokens, and as many right drafts as transformers' MTP layer says.

    Where a chunk of a prompt ends, vLLM 0.27.1's runner for devices gives the draft the prompt's
    last token instead of the next one, so acceptance is compared for whole prompts alone.
    """
    drafts = {"speculative_config": {"method": "mtp", "num_speculative_tokens": width}}
    engine = engines.get(SPEC, **settings, **drafts)
    requests = ragged()
    names = ("num_draft_tokens", "num_accepted_tokens")
    before = [engine.metric(f"vllm:spec_decode_{name}") for name in names]
    replays = counters()
    results = engine.run(requests)
    assert bool((counters() - replays).replays) is bool(settings)
    after = [engine.metric(f"vllm:spec_decode_{name}") for name in names]
    oracle = checkpoints.oracle(SPEC)
    assert_all_match(oracle, requests, results)
    draft = V3MtpOracle(oracle)
    expected = [draft.speculate(r.prompt, r.count, width) for r in requests]
    assert sum(one.accepted for one in expected) > 0
    reported = [now - then for now, then in zip(after, before, strict=True)]
    assert reported == [sum(o.drafted for o in expected), sum(o.accepted for o in expected)]
    with engine.scheduling_at_most(100):
        results = engine.run(requests[-2:])
    assert_all_match(oracle, requests[-2:], results)


def test_graphs_without_drafts(engines: EnginePool, checkpoints: Checkpoints) -> None:
    engine = engines.get(SPEC, **GRAPHS)
    requests = ragged()
    before = counters()
    results = engine.run(requests)
    assert (counters() - before).replays >= 5
    assert_all_match(checkpoints.oracle(SPEC), requests, results)
