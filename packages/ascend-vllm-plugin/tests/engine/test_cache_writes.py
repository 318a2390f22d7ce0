"""What a step may touch: rows of its own requests, and nothing that was never written.

Every cache is filled with NaN first. A read of an unwritten row then spoils the logits, and a write
outside a request's blocks (a padding slot of -1 is the last one, bug case 14) leaves a number where
none may be.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import random_prompt

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

SPEC = "mixed"
VOCAB = 512
NULL_BLOCK = 0


@pytest.fixture(
    params=[{}, {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}}],
    ids=["plain", "mtp3"],
    scope="module",
)
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


@pytest.fixture
def engine(engines: EnginePool, settings: dict[str, Any]) -> Engine:
    return engines.get(SPEC, **settings)


def numbers_outside(engine: Engine, allowed: set[int]) -> dict[str, list[int]]:
    """Blocks of each cache that hold a number and belong to none of the requests."""
    found = {}
    for name, cache in engine.caches.items():
        written = (~cache.isnan()).flatten(1).any(dim=1).nonzero().flatten().tolist()
        stray = sorted(set(written) - allowed)
        if stray:
            found[name] = stray
    return found


def test_steps_stay_in_their_blocks(engine: Engine, checkpoints: Checkpoints) -> None:
    for cache in engine.caches.values():
        cache.fill_(float("nan"))
    shapes = [(1, 20, 0), (370, 12, 0), (127, 9, 1), (130, 16, 3), (5, 14, 6)]
    requests = [
        Request(random_prompt(n, VOCAB, seed=n), count, join_at) for n, count, join_at in shapes
    ]
    with engine.recording_blocks() as used, engine.scheduling_at_most(64):
        results = engine.run(requests)
    assert_all_match(checkpoints.oracle(SPEC), requests, results)
    assert len(used) > 10
    assert numbers_outside(engine, used - {NULL_BLOCK}) == {}


def test_the_check_sees_a_stray_write(engine: Engine) -> None:
    name, cache = next(iter(engine.caches.items()))
    for each in engine.caches.values():
        each.fill_(float("nan"))
    cache[-1, -1] = 1.0
    assert numbers_outside(engine, {1, 2})[name] == [cache.shape[0] - 1]
    assert torch.isnan(cache[0]).all()
