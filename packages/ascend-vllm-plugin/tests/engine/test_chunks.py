"""Prompts fed in chunks that cut compression windows of 4 and 128 tokens (bug case 16)."""

from __future__ import annotations

import pytest
from ascend_models_deepseek.testing import random_prompt

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

SPEC = "mixed"
VOCAB = 512


@pytest.fixture
def engine(engines: EnginePool) -> Engine:
    return engines.get(SPEC)


@pytest.mark.parametrize(
    ("chunk", "lengths", "count"),
    [
        (3, (129,), 8),
        (7, (5, 150), 8),
        (64, (129, 370), 32),
        (100, (127, 370), 32),
        (128, (129, 700), 32),
        (129, (370, 700), 32),
    ],
)
def test_chunked_prompts(
    engine: Engine,
    checkpoints: Checkpoints,
    chunk: int,
    lengths: tuple[int, ...],
    count: int,
) -> None:
    with engine.scheduling_at_most(chunk):
        for length in lengths:
            request = Request(random_prompt(length, VOCAB, seed=length), count)
            assert_all_match(checkpoints.oracle(SPEC), [request], engine.run([request]))


@pytest.mark.parametrize("chunk", [7, 100])
def test_chunks_share_steps_with_decodes(
    engine: Engine, checkpoints: Checkpoints, chunk: int
) -> None:
    lengths = (5, 64, 130) if chunk < 64 else (3, 128, 257, 370)
    requests = [
        Request(random_prompt(length, VOCAB, seed=length + chunk), 24, join_at=2 * i)
        for i, length in enumerate(lengths)
    ]
    with engine.scheduling_at_most(chunk):
        results = engine.run(requests)
    assert_all_match(checkpoints.oracle(SPEC), requests, results)


def test_every_split_of_a_short_prompt(engine: Engine, checkpoints: Checkpoints) -> None:
    for length in (3, 4, 5, 9):
        for chunk in range(1, length + 1):
            request = Request(random_prompt(length, VOCAB, seed=length), 4)
            with engine.scheduling_at_most(chunk):
                results = engine.run([request])
            assert_all_match(checkpoints.oracle(SPEC), [request], results)


@pytest.mark.parametrize("length", [127, 128, 129])
def test_splits_around_a_long_window(engine: Engine, checkpoints: Checkpoints, length: int) -> None:
    for chunk in (63, 126, 127, 128):
        request = Request(random_prompt(length, VOCAB, seed=length), 4)
        with engine.scheduling_at_most(chunk):
            results = engine.run([request])
        assert_all_match(checkpoints.oracle(SPEC), [request], results)


def test_chunk_size_set_by_the_user(engines: EnginePool, checkpoints: Checkpoints) -> None:
    name = "wide_window"
    vocab = checkpoints.spec(name).vocab_size
    engine = engines.get(name, max_num_batched_tokens=100, max_num_seqs=8)
    assert engine.scheduler.max_num_scheduled_tokens == 100
    requests = [Request(random_prompt(n, vocab, seed=n), 16, join_at=n % 3) for n in (5, 129, 370)]
    assert_all_match(checkpoints.oracle(name), requests, engine.run(requests))
