"""Sampling with and without drafts: the sampled tokens follow the target's distribution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import random_prompt

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

SPEC = "mixed"
VOCAB = 512
TEMPERATURE = 0.3
MOST_STANDARD_ERRORS = 4.0


@pytest.fixture(
    params=[{}, {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}],
    ids=["plain", "mtp2"],
    scope="module",
)
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


@pytest.fixture
def engine(engines: EnginePool, settings: dict[str, Any]) -> Engine:
    return engines.get(SPEC, **settings)


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 1.0, "top_k": 1}, {"temperature": 1.0, "top_p": 1e-6}],
    ids=["top_k", "top_p"],
)
def test_one_choice_left_is_the_greedy_one(
    engine: Engine, checkpoints: Checkpoints, sampling: dict[str, Any]
) -> None:
    requests = [
        Request(random_prompt(n, VOCAB, seed=n), 24, sampling=sampling) for n in (5, 129, 60)
    ]
    assert_all_match(checkpoints.oracle(SPEC), requests, engine.run(requests))


def test_top_k_beyond_the_vocabulary_is_no_limit(engine: Engine) -> None:
    """More than the vocabulary is the same as no limit (bug case 21), with the same seed."""
    tokens = [
        engine.run([Request([7, 8, 9], 16, sampling={"temperature": 1.0, "seed": 3, **extra})])[0]
        for extra in ({}, {"top_k": 100_000}, {"top_k": VOCAB})
    ]
    assert tokens[0].tokens == tokens[1].tokens == tokens[2].tokens


def test_sampled_tokens_follow_the_distribution(engine: Engine, checkpoints: Checkpoints) -> None:
    """The mean logit of sampled tokens is what transformers' probabilities predict."""
    requests = [
        Request(
            random_prompt(20, VOCAB, seed=seed),
            40,
            sampling={"temperature": TEMPERATURE, "seed": seed},
        )
        for seed in range(12)
    ]
    oracle = checkpoints.oracle(SPEC)
    surplus, variance = [], []
    for request, result in zip(requests, engine.run(requests), strict=True):
        ids = [*request.prompt, *result.tokens[:-1]]
        logits = oracle.logits(ids)[len(request.prompt) - 1 :]
        chance = (logits / TEMPERATURE).softmax(dim=-1)
        mean = (chance * logits).sum(dim=-1)
        variance.append((chance * logits.square()).sum(dim=-1) - mean.square())
        surplus.append(logits.gather(1, torch.tensor(result.tokens)[:, None])[:, 0] - mean)
    error = float(torch.cat(variance).sum().sqrt())
    assert abs(float(torch.cat(surplus).sum())) < MOST_STANDARD_ERRORS * error
