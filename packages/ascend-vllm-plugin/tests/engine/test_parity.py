"""Logits and greedy tokens of the real engine against transformers, prompt by prompt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from ascend_models_deepseek.testing import SPECS, random_prompt

# Bound at import: a running worker replaces torch's attribute by one that only warns.
from torch import set_num_threads

from .harness import (
    Checkpoints,
    Engine,
    EnginePool,
    Request,
    assert_all_match,
    assert_clear_match,
)

pytestmark = pytest.mark.engine

LENGTHS = (1, 3, 4, 5, 127, 128, 129, 370, 700)
COUNT = 64


@pytest.fixture(scope="module", autouse=True)
def two_threads() -> Iterator[None]:
    """Engines of the other files compute on one, see the noxfile."""
    threads = torch.get_num_threads()
    set_num_threads(2)
    yield
    set_num_threads(threads)


@pytest.fixture(params=sorted(SPECS), scope="module")
def spec_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def engine(engines: EnginePool, spec_name: str) -> Engine:
    return engines.get(spec_name)


def test_prompts_alone(engine: Engine, checkpoints: Checkpoints, spec_name: str) -> None:
    vocab = checkpoints.spec(spec_name).vocab_size
    lengths = LENGTHS if spec_name == "mixed" else (5, 129)
    for length in lengths:
        assert_clear_match(
            engine,
            checkpoints.oracle(spec_name),
            lambda seed, n=length: [Request(random_prompt(n, vocab, seed=seed + n), COUNT)],
        )


def test_prompts_together(engine: Engine, checkpoints: Checkpoints, spec_name: str) -> None:
    vocab = checkpoints.spec(spec_name).vocab_size
    assert_clear_match(
        engine,
        checkpoints.oracle(spec_name),
        lambda seed: [Request(random_prompt(n, vocab, seed=seed + n), COUNT) for n in LENGTHS],
    )


def test_ragged_requests_join_and_finish_at_different_steps(
    engine: Engine, checkpoints: Checkpoints, spec_name: str
) -> None:
    vocab = checkpoints.spec(spec_name).vocab_size
    shapes = [
        (1, 64, 0),
        (255, 5, 0),
        (17, 33, 1),
        (128, 12, 3),
        (129, 40, 4),
        (300, 21, 9),
        (4, 8, 12),
        (370, 50, 20),
    ]
    requests = [
        Request(random_prompt(length, vocab, seed=100 + length), count, join_at)
        for length, count, join_at in shapes
    ]
    results = engine.run(requests)
    assert len({result.finished_at for result in results}) >= 6
    assert_all_match(checkpoints.oracle(spec_name), requests, results)


def test_prompt_logits(engine: Engine, checkpoints: Checkpoints, spec_name: str) -> None:
    from ascend_models_deepseek.testing import FLOAT32_LOGITS_ATOL

    vocab = checkpoints.spec(spec_name).vocab_size
    request = Request(random_prompt(370, vocab, seed=11), 1, prompt_logits=True)
    result = engine.run([request])[0]
    assert result.prompt_logits is not None
    expected = checkpoints.oracle(spec_name).clear_logits(request.prompt)[:-1]
    assert float((result.prompt_logits - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
