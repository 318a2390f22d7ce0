"""Requests thrown out of a small cache resume as an uninterrupted run (bug case 24)."""

from __future__ import annotations

from typing import Any

import pytest
from ascend_models_deepseek.testing import random_prompt

from .harness import Checkpoints, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

SPEC = "mixed"
VOCAB = 512
# Enough for one request of 1024 tokens in chunks of 128. A short request holds 7 blocks at first,
# then 24 once it has 128 tokens, so several that start together must outgrow this.
SMALL_CACHE = {"num_gpu_blocks_override": 100, "max_num_batched_tokens": 128}

SHAPES = ((3, 90), (20, 80), (5, 100), (9, 64), (61, 64), (12, 70), (4, 100), (130, 64))


def speculating(width: int) -> dict[str, Any]:
    return {"speculative_config": {"method": "mtp", "num_speculative_tokens": width}}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"enable_prefix_caching": True},
        speculating(1),
        speculating(3),
        speculating(5),
    ],
    ids=["plain", "prefix_cache", "mtp1", "mtp3", "mtp5"],
)
def test_preempted_requests_resume(
    engines: EnginePool, checkpoints: Checkpoints, settings: dict[str, Any]
) -> None:
    engine = engines.get(SPEC, **SMALL_CACHE, **settings)
    requests = [
        Request(random_prompt(length, VOCAB, seed=length), count, join_at=i)
        for i, (length, count) in enumerate(SHAPES)
    ]
    before = engine.metric("vllm:num_preemptions")
    results = engine.run(requests)
    assert engine.metric("vllm:num_preemptions") >= before + 2
    assert_all_match(checkpoints.oracle(SPEC), requests, results)
