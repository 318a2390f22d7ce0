"""Speculative decoding with the checkpoint's own draft layer."""

from __future__ import annotations

from typing import Any

import pytest
from ascend_models_deepseek.testing import MtpOracle, Speculation, random_prompt

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

SPEC = "mixed"
VOCAB = 512


@pytest.fixture(params=[1, 3], ids=lambda width: f"k{width}", scope="module")
def width(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def engine(engines: EnginePool, width: int) -> Engine:
    return engines.get(
        SPEC,
        enable_prefix_caching=True,
        speculative_config={"method": "mtp", "num_speculative_tokens": width},
    )


def counters(engine: Engine) -> dict[str, float]:
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    return {name: engine.metric(f"vllm:spec_decode_{name}") for name in names}


def total(expected: list[Speculation]) -> dict[str, float]:
    """What vLLM must have counted after these requests."""
    return {
        "num_drafts": sum(e.rounds for e in expected),
        "num_draft_tokens": sum(e.drafted for e in expected),
        "num_accepted_tokens": sum(e.accepted for e in expected),
    }


@pytest.mark.parametrize("length", [1, 5, 129, 370])
def test_tokens_and_acceptance(
    engine: Engine, checkpoints: Checkpoints, width: int, length: int
) -> None:
    """Tokens and logits are the target's, and as many drafts are right as transformers says."""
    assert engine.llm.reset_prefix_cache()
    request = Request(random_prompt(length, VOCAB, seed=length), 64)
    before = counters(engine)
    results = engine.run([request])
    reported = {name: value - before[name] for name, value in counters(engine).items()}
    oracle = checkpoints.oracle(SPEC)
    assert_all_match(oracle, [request], results)
    expected = MtpOracle(oracle).speculate(request.prompt, request.count, width)
    assert expected.accepted > 0
    assert reported == total([expected])


def test_ragged_batch_in_chunks(engine: Engine, checkpoints: Checkpoints, width: int) -> None:
    """The draft reads its own group's block table, whatever else is in the batch (bug case 18)."""
    assert engine.llm.reset_prefix_cache()
    shapes = [(4, 40, 0), (370, 30, 0), (127, 25, 2), (129, 12, 5), (255, 33, 9)]
    requests = [
        Request(random_prompt(n, VOCAB, seed=n), count, join_at) for n, count, join_at in shapes
    ]
    before = counters(engine)
    with engine.scheduling_at_most(100):
        results = engine.run(requests)
    reported = {name: value - before[name] for name, value in counters(engine).items()}
    oracle = checkpoints.oracle(SPEC)
    assert_all_match(oracle, requests, results)
    drafts = MtpOracle(oracle)
    assert reported == total([drafts.speculate(r.prompt, r.count, width) for r in requests])


def test_prefix_hit(engine: Engine, checkpoints: Checkpoints) -> None:
    assert engine.llm.reset_prefix_cache()
    request = Request(random_prompt(700, VOCAB, seed=3), 24)
    results = [engine.run([request])[0] for _ in range(2)]
    assert [result.cached > 0 for result in results] == [False, True]
    assert_all_match(checkpoints.oracle(SPEC), [request, request], results)


def test_drafts_outlive_steps_without_their_request(
    engine: Engine, checkpoints: Checkpoints, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts of a request that a step leaves out are verified later, or dropped (bug case 24).

    A placeholder of -1 among them would be refused by the embedding.
    """
    scheduler, schedule = engine.scheduler, engine.scheduler.schedule
    budget = scheduler.max_num_scheduled_tokens
    steps, left_out = 0, 0

    def schedule_for_one_request_at_times(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps, left_out
        steps += 1
        scheduler.max_num_scheduled_tokens = width + 1 if steps % 8 in (4, 5, 6) else budget
        drafts = {name: list(r.spec_token_ids) for name, r in scheduler.requests.items()}
        output = schedule(*args, **kwargs)
        left_out += sum(bool(drafts[n]) for n in drafts.keys() - output.num_scheduled_tokens)
        return output

    monkeypatch.setattr(scheduler, "schedule", schedule_for_one_request_at_times)
    requests = [Request(random_prompt(length, VOCAB, seed=length), 40) for length in (5, 20)]
    try:
        results = engine.run(requests)
    finally:
        scheduler.max_num_scheduled_tokens = budget
    assert left_out >= 3
    assert_all_match(checkpoints.oracle(SPEC), requests, results)
