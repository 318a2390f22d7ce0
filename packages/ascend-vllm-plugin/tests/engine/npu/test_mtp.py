"""MTP speculation on the simulated NPU: the target's tokens, and the acceptance it must have."""

from __future__ import annotations

import pytest
from ascend_models_deepseek.testing import MtpOracle, random_prompt

from ..harness import Checkpoints, Engine, EnginePool, Request, assert_all_match
from ..speculation import check_drafts_behind_chunks

pytestmark = pytest.mark.engine_npu

SPEC = "mixed"
VOCAB = 512
WIDTH = 3


@pytest.fixture
def engine(engines: EnginePool) -> Engine:
    return engines.get(SPEC, speculative_config={"method": "mtp", "num_speculative_tokens": WIDTH})


def drafted_and_accepted(engine: Engine) -> tuple[float, float]:
    return (
        engine.metric("vllm:spec_decode_num_draft_tokens"),
        engine.metric("vllm:spec_decode_num_accepted_tokens"),
    )


def test_a_ragged_batch_in_chunks(engine: Engine, checkpoints: Checkpoints) -> None:
    """As many drafts are proposed and right as transformers says, request by request."""
    shapes = [(1, 8, 0), (4, 16, 0), (260, 8, 0), (127, 12, 2), (129, 6, 4)]
    requests = [
        Request(random_prompt(n, VOCAB, seed=n), count, join_at) for n, count, join_at in shapes
    ]
    before = drafted_and_accepted(engine)
    with engine.scheduling_at_most(100):
        results = engine.run(requests)
    after = drafted_and_accepted(engine)
    oracle = checkpoints.oracle(SPEC)
    assert_all_match(oracle, requests, results)
    drafts = MtpOracle(oracle)
    expected = [drafts.speculate(r.prompt, r.count, WIDTH) for r in requests]
    assert sum(one.accepted for one in expected) > 0
    assert after[0] - before[0] == sum(one.drafted for one in expected)
    assert after[1] - before[1] == sum(one.accepted for one in expected)


def test_drafts_behind_a_prompt_in_chunks(engine: Engine) -> None:
    check_drafts_behind_chunks(engine, random_prompt(40, VOCAB, seed=6), 6)


def test_sampling_with_one_choice_left(engine: Engine, checkpoints: Checkpoints) -> None:
    """Drafts are verified by chance here, beside a greedy request."""
    requests = [
        Request(random_prompt(60, VOCAB, seed=1), 8, sampling={"temperature": 1.0, "top_k": 1}),
        Request(random_prompt(5, VOCAB, seed=2), 8),
        Request(random_prompt(9, VOCAB, seed=3), 8, sampling={"temperature": 0.7, "top_p": 1e-6}),
    ]
    assert_all_match(checkpoints.oracle(SPEC), requests, engine.run(requests))


def test_a_context_that_fills_up_while_drafting(engine: Engine, checkpoints: Checkpoints) -> None:
    """Drafts beyond the longest context are not cached anywhere."""
    longest = engine.engine.model_config.max_model_len
    request = Request(random_prompt(longest - 9, VOCAB, seed=4), 9)
    assert_all_match(checkpoints.oracle(SPEC), [request], engine.run([request]))
