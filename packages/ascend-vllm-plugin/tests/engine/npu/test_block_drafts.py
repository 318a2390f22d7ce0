"""DFlash and DSpark drafts of a trained Qwen3 on the simulated NPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ascend_ops_core.testing.simulated_npu import counters

from ..block_drafts import (
    TARGET,
    assert_accepted_as_the_oracle,
    assert_as_without_drafts,
    said,
    start,
    story,
)
from ..harness import Engine, Request
from ..speculation import check_every_width, check_planned
from .conftest import FAMILY

pytestmark = pytest.mark.engine_npu

DRAFTS = {"dflash": 7, "dspark": 7}
GRAPHS = {
    "enforce_eager": False,
    "compilation_config": {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [8, 32],
    },
}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module", params=list(DRAFTS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def engine(kind: str, in_process: None, scratch: Path) -> Iterator[Engine]:
    settings = {"speculative": {"rejection_sample_method": "block"}} | GRAPHS
    if kind == "dflash":
        # vLLM leaves the last whole block of a hit out where a draft reads hidden states.
        settings = {"enable_prefix_caching": True, "max_model_len": 320}
    engine = start(kind, DRAFTS[kind], scratch, **settings)
    yield engine
    engine.close()


def ragged(seed: int) -> list[Request]:
    """Lengths around a block of the cache, joining and finishing at different steps."""
    shapes = ((1, 10, 0), (31, 9, 0), (127, 8, 1), (128, 5, 2))
    return [Request(story(n, seed + n), count, at) for n, count, at in shapes]


def test_a_ragged_batch_in_chunks(engine: Engine, kind: str, scratch: Path) -> None:
    before = counters()
    with engine.scheduling_at_most(60):
        assert_accepted_as_the_oracle(engine, kind, scratch, DRAFTS[kind], ragged(0))
    if kind == "dspark":
        assert (counters() - before).replays > 0, "the target's decode steps are graphs"


def test_every_number_of_drafts(engine: Engine) -> None:
    requests = [Request(story(1, 21), 8), Request(story(45, 22), 8)]
    check_every_width(engine, requests, [said(one.prompt, one.count) for one in requests])


def test_memory_is_what_was_planned(engine: Engine) -> None:
    check_planned(engine, TARGET, FAMILY)


def test_a_context_that_fills_up_and_random_neighbours(engine: Engine) -> None:
    requests = [
        Request(story(engine.engine.model_config.max_model_len - 9, 5), 9),
        Request(story(8, 6), 30),
        Request(story(20, 7), 20, sampling={"temperature": 1.0, "top_k": 1}),
        Request(story(20, 8), 20, sampling={"temperature": 1.0, "seed": 1}),
    ]
    assert_as_without_drafts(requests[:3], engine.run(requests)[:3])


def test_a_prefix_hit(engine: Engine, kind: str) -> None:
    if kind != "dflash":
        return
    request = Request(story(300, 9), 12)
    results = [engine.run([request])[0] for _ in range(2)]
    assert results[1].cached > 0
    assert_as_without_drafts([request, request], results)
