"""Qwen3-Next's own drafts on our Gated DeltaNet: tokens, acceptance, states after rejection."""

from __future__ import annotations

from typing import Any

import pytest
from ascend_vllm_plugin.testing import Qwen3NextMtpOracle

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match
from .test_mtp import counters, total
from .test_qwen3_next import oracle_of, requests_of

pytestmark = pytest.mark.engine

NAME = "qwen3_next_mtp"
SETTINGS: dict[str, Any] = {
    "enable_prefix_caching": True,
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    # Some requests run at once, and not all of them to their ends.
    "num_gpu_blocks_override": 24,
}


def speculation(width: int) -> dict[str, Any]:
    return {"method": "qwen3_next_mtp", "num_speculative_tokens": width}


@pytest.fixture(params=[1, 2, 3], ids=lambda width: f"k{width}", scope="module")
def width(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def engine(engines: EnginePool, width: int) -> Engine:
    engine = engines.get(NAME, speculative_config=speculation(width), **SETTINGS)
    assert engine.llm.reset_prefix_cache()
    return engine


def test_as_many_drafts_are_right_as_transformers_says(
    engine: Engine, checkpoints: Checkpoints, width: int
) -> None:
    """A rejected one leaves no trace in the states of either model.

    Whole prompts: behind the end of a chunk vLLM 0.27.1 shows a draft the prompt's last token, not
    its next one (``prepare_next_token_ids_padded``), which makes it worse than transformers says.
    """
    oracle = oracle_of(checkpoints, NAME)
    requests = requests_of(oracle, [(1, 24, 0), (100, 20, 1), (65, 16, 3)])
    before, preempted = counters(engine), engine.metric("vllm:num_preemptions")
    results = engine.run(requests)
    assert engine.metric("vllm:num_preemptions") == preempted
    reported = {name: value - before[name] for name, value in counters(engine).items()}
    assert_all_match(oracle, requests, results)
    drafts = Qwen3NextMtpOracle(oracle)
    expected = total([drafts.speculate(r.prompt, r.count, width) for r in requests])
    assert 0 < expected["num_accepted_tokens"] < expected["num_draft_tokens"]
    assert reported == expected


def test_a_prefix_is_taken_up_where_drafts_crossed_the_end_of_a_block(
    engine: Engine, checkpoints: Checkpoints
) -> None:
    """With a draft vLLM matches one block more, and drops it."""
    oracle = oracle_of(checkpoints, NAME)
    unit = engine.engine.vllm_config.cache_config.block_size
    requests = requests_of(oracle, [(3 * unit - 3, 16, 0)])
    with engine.scheduling_at_most(100):
        results = engine.run(requests)
    assert_all_match(oracle, requests, results)
    again = [Request(requests[0].prompt + results[0].tokens, 6)]
    results = engine.run(again)
    assert results[0].cached == 2 * unit
    assert_all_match(oracle, again, results)


def test_a_prompt_of_one_token_beside_drafts(engine: Engine, checkpoints: Checkpoints) -> None:
    """vLLM gives it drafts at once, so that all requests of the step are alike."""
    oracle = oracle_of(checkpoints, NAME)
    requests = requests_of(oracle, [(50, 12, 0), (1, 8, 1), (2, 6, 2), (1, 6, 3)])
    assert_all_match(oracle, requests, engine.run(requests))


@pytest.mark.parametrize("width", [1, 2], indirect=True)
def test_preempted_requests_resume(engine: Engine, checkpoints: Checkpoints) -> None:
    oracle = oracle_of(checkpoints, NAME)
    shapes = [(120, 20, 0), (100, 30, 1), (125, 30, 2), (61, 40, 3), (9, 20, 4), (130, 10, 5)]
    requests = requests_of(oracle, shapes)
    before = engine.metric("vllm:num_preemptions")
    results = engine.run(requests)
    assert engine.metric("vllm:num_preemptions") > before
    assert_all_match(oracle, requests, results)
