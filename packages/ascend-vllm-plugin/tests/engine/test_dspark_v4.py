"""DeepSeek-V4's DSpark draft: greedy tokens, acceptance, and its hidden states."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .dspark_v4 import (
    BLOCK,
    TARGET,
    assert_accepted_as_the_oracle,
    assert_as_without_drafts,
    assert_every_number_of_drafts,
    assert_planned,
    assert_rows_of_the_oracle,
    start,
    story,
)
from .harness import Engine, Request

pytestmark = pytest.mark.engine

DRAFTS = BLOCK + 2


@pytest.fixture(scope="module")
def engine(in_process: None) -> Iterator[Engine]:
    engine = start(
        DRAFTS,
        # Enough for a request of the longest context in such chunks, so that several outgrow it.
        num_gpu_blocks_override=120,
        max_num_seqs=8,
        max_num_batched_tokens=176,
        enable_prefix_caching=True,
        speculative={
            "rejection_sample_method": "block",
            "draft_sample_method": "probabilistic",
        },
    )
    yield engine
    engine.close()


def test_a_ragged_batch_in_chunks(engine: Engine) -> None:
    """As many drafts stand as plain torch says, whatever is in the batch."""
    shapes = ((1, 12, 0), (63, 9, 0), (100, 16, 1), (130, 5, 2))
    requests = [Request(story(n, n), count, at) for n, count, at in shapes]
    with engine.scheduling_at_most(50):
        assert assert_accepted_as_the_oracle(engine, DRAFTS, requests) > 1


def test_every_number_of_drafts(engine: Engine) -> None:
    assert_every_number_of_drafts(engine, DRAFTS)


def test_memory_is_what_was_planned(engine: Engine) -> None:
    assert_planned(engine, TARGET, "cpu")


def test_hidden_states_of_a_draft(engine: Engine) -> None:
    """In steps of the fused layer, and in one that is longer than the window."""
    assert_rows_of_the_oracle(engine, DRAFTS, story(90, 3), 14)


def test_a_context_that_fills_up_inside_a_block(engine: Engine) -> None:
    """Beside others, whose drafts go on."""
    longest = engine.engine.model_config.max_model_len
    requests = [Request(story(longest - 9, 5), 9), Request(story(8, 6), 40)]
    assert_as_without_drafts(requests, engine.run(requests))


def test_greedy_beside_random(engine: Engine) -> None:
    requests = [
        Request(story(20, 8), 16),
        Request(story(30, 9), 16, sampling={"temperature": 1.0, "seed": 4}),
        Request(story(40, 10), 16, sampling={"temperature": 0.8, "top_k": 1}),
    ]
    results = engine.run(requests)
    assert_as_without_drafts(requests[::2], results[::2])
    assert engine.run([requests[1]])[0].tokens == results[1].tokens, "a seed decides"


def test_prefix_hits_and_preemption(engine: Engine) -> None:
    # vLLM leaves the last block of the window out of a hit where a draft reads hidden states.
    again = Request(story(340, 11), 12)
    assert engine.llm.reset_prefix_cache()
    assert [engine.run([again])[0].cached > 0 for _ in range(2)] == [False, True]
    before = engine.metric("vllm:num_preemptions")
    requests = [Request(story(20 + 30 * i, 12 + i), 40) for i in range(6)]
    results = engine.run([*requests, again])
    assert engine.metric("vllm:num_preemptions") > before
    assert_as_without_drafts([*requests, again], results)
