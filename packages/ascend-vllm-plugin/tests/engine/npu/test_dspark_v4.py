"""DeepSeek-V4's DSpark draft on the simulated NPU, from the target's own checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..dspark_v4 import (
    BLOCK,
    assert_accepted_as_the_oracle,
    assert_as_without_drafts,
    assert_rows_of_the_oracle,
    join,
    start,
    story,
)
from ..harness import Engine, Request

pytestmark = pytest.mark.engine_npu


@pytest.fixture(scope="module")
def engine(in_process: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = start(
        BLOCK,
        join(tmp_path_factory.mktemp("joined")),
        additional_config={"cache_dtype": "model"},
        enable_prefix_caching=True,
        speculative={"rejection_sample_method": "block"},
        enforce_eager=False,
        compilation_config={
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [BLOCK + 1, 4 * (BLOCK + 1)],
        },
    )
    yield engine
    engine.close()


def test_a_ragged_batch_in_chunks(engine: Engine) -> None:
    """As many drafts stand as plain torch says, whatever is in the batch."""
    shapes = ((1, 8, 0), (63, 9, 0), (130, 5, 1))
    requests = [Request(story(n, n), count, at) for n, count, at in shapes]
    with engine.scheduling_at_most(60):
        assert assert_accepted_as_the_oracle(engine, BLOCK, requests) > 1


def test_hidden_states_of_a_draft(engine: Engine) -> None:
    assert_rows_of_the_oracle(engine, BLOCK, story(90, 3), 8)


def test_a_context_that_fills_up_and_random_neighbours(engine: Engine) -> None:
    longest = engine.engine.model_config.max_model_len
    requests = [
        Request(story(longest - 7, 5), 7),
        Request(story(8, 6), 20),
        Request(story(20, 7), 12, sampling={"temperature": 1.0, "top_k": 1}),
        Request(story(20, 8), 12, sampling={"temperature": 1.0, "seed": 1}),
    ]
    assert_as_without_drafts(requests[:3], engine.run(requests)[:3])


def test_a_prefix_hit(engine: Engine) -> None:
    request = Request(story(340, 9), 8)
    assert engine.llm.reset_prefix_cache()
    results = [engine.run([request])[0] for _ in range(2)]
    assert results[1].cached > 0
    assert_as_without_drafts([request, request], results)
