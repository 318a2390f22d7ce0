"""Prefix caching over compressed caches: hits must happen and change nothing (bug case 17)."""

from __future__ import annotations

import pytest
from ascend_models_deepseek.testing import random_prompt

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

SPEC = "mixed"
VOCAB = 512


@pytest.fixture
def engine(engines: EnginePool) -> Engine:
    engine = engines.get(SPEC, enable_prefix_caching=True)
    assert engine.llm.reset_prefix_cache()
    return engine


def test_second_run_hits_and_equals_the_first(engine: Engine, checkpoints: Checkpoints) -> None:
    requests = [Request(random_prompt(n, VOCAB, seed=7), 64) for n in (370, 700)]
    for request in requests:
        assert engine.llm.reset_prefix_cache()
        first, second = engine.run([request])[0], engine.run([request])[0]
        assert first.cached == 0
        assert second.cached > 0
        assert second.tokens == first.tokens
        assert_all_match(checkpoints.oracle(SPEC), [request, request], [first, second])


def test_shared_prefix_with_other_endings(engine: Engine, checkpoints: Checkpoints) -> None:
    prefix = random_prompt(530, VOCAB, seed=1)
    warm = Request(prefix, 4)
    engine.run([warm])
    requests = [
        Request(prefix + random_prompt(n, VOCAB, seed=40 + n), 16, join_at=i)
        for i, n in enumerate((1, 3, 129))
    ]
    results = engine.run(requests)
    assert all(result.cached > 0 for result in results)
    assert_all_match(checkpoints.oracle(SPEC), requests, results)


def test_hit_then_chunks(engine: Engine, checkpoints: Checkpoints) -> None:
    prefix = random_prompt(300, VOCAB, seed=2)
    engine.run([Request(prefix, 1)])
    requests = [Request(prefix + random_prompt(200, VOCAB, seed=3), 16)]
    with engine.scheduling_at_most(7):
        results = engine.run(requests)
    assert results[0].cached > 0
    assert_all_match(checkpoints.oracle(SPEC), requests, results)


@pytest.mark.parametrize("shared", [128, 255, 256, 257, 511])
def test_requests_that_part_inside_a_block(
    engine: Engine, checkpoints: Checkpoints, shared: int
) -> None:
    """What is reused never reaches beyond the tokens that two requests have in common."""
    common = random_prompt(shared, VOCAB, seed=24)
    requests = [
        Request(common + random_prompt(560 - shared, VOCAB, seed=seed), 8) for seed in (53, 52)
    ]
    for request in requests:
        result = engine.run([request])[0]
        assert result.cached <= shared
        assert_all_match(checkpoints.oracle(SPEC), [request], [result])


def test_generated_tokens_are_reused(engine: Engine, checkpoints: Checkpoints) -> None:
    prompt = random_prompt(250, VOCAB, seed=5)
    first = engine.generate(prompt, 64)
    follow_up = Request(prompt + first.tokens + random_prompt(3, VOCAB, seed=6), 16)
    result = engine.run([follow_up])[0]
    assert result.cached > 0
    assert_all_match(checkpoints.oracle(SPEC), [follow_up], [result])


def test_join_while_the_prefix_is_still_running(engine: Engine, checkpoints: Checkpoints) -> None:
    prefix = random_prompt(520, VOCAB, seed=8)
    requests = [
        Request(prefix, 40),
        Request([*prefix, 9, 8, 7], 24, join_at=5),
        Request(prefix, 24, join_at=6),
    ]
    results = engine.run(requests)
    assert [result.cached > 0 for result in results] == [False, True, True]
    assert_all_match(checkpoints.oracle(SPEC), requests, results)
