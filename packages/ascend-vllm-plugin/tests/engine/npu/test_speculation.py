"""Drafts for Llama and Qwen3 on the simulated NPU: tokens are those of the target."""

from __future__ import annotations

from typing import Any

import pytest

from ..harness import Checkpoints, Engine, EnginePool, Request
from ..speculation import (
    Way,
    check_drafts_behind_chunks,
    check_every_width,
    check_full_context,
    check_mixed_sampling,
    check_planned,
    check_preemption,
    check_ragged_chunks_and_prefix,
    check_stops,
    check_told,
    engine_of,
    repeating_prompt,
)
from ..trained import story_prompt
from .conftest import FAMILY

pytestmark = pytest.mark.engine_npu

LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
PREEMPTED = Way("stories-llama", "eagle3", 2, {"draft_sample_method": "probabilistic"})
TEXT = Way("stories-llama", "ngram", 7, LOOKUP)
WAYS = [
    TEXT,
    Way("stories-llama", "ngram_gpu", 3, LOOKUP),
    Way("stories-qwen3", "suffix", 7),
    Way("stories-llama", "medusa", 4),
    Way("stories-qwen3", "eagle3", 7),
    PREEMPTED,
]

SMALL_CACHE: dict[str, Any] = {"num_gpu_blocks_override": 7, "block_size": 128}
"""Blocks of the longest context and a few more."""


@pytest.fixture(params=WAYS, ids=str, scope="module")
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


@pytest.fixture
def engine(engines: EnginePool, way: Way) -> Engine:
    return engine_of(engines, way, **SMALL_CACHE)


@pytest.mark.parametrize(
    "check",
    [check_ragged_chunks_and_prefix, check_full_context, check_mixed_sampling],
    ids=lambda check: check.__name__.removeprefix("check_"),
)
def test_tokens_are_the_target_s(
    engine: Engine, checkpoints: Checkpoints, way: Way, check: Any
) -> None:
    check(engine, checkpoints, way)


def test_every_number_of_drafts(engine: Engine, checkpoints: Checkpoints, way: Way) -> None:
    if way.width < 7:
        return
    oracle = checkpoints.oracle(way.target)
    requests = [Request(story_prompt(1, 3), 6), Request(repeating_prompt(oracle, 12), 12)]
    check_every_width(engine, requests, [oracle.greedy(r.prompt, r.count).tokens for r in requests])


def test_drafts_behind_a_prompt_in_chunks(engine: Engine, way: Way) -> None:
    if way is PREEMPTED:
        check_drafts_behind_chunks(engine, story_prompt(60, 8), 12)


def test_drafts_that_are_all_right_or_the_least_likely(
    engine: Engine, checkpoints: Checkpoints, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way is TEXT:
        check_told(engine, checkpoints, way, monkeypatch)


def test_memory_is_what_was_planned(engine: Engine, checkpoints: Checkpoints, way: Way) -> None:
    check_planned(engine, checkpoints.folder(way.target), FAMILY)


@pytest.mark.parametrize("way", [PREEMPTED], ids=str, indirect=True)
def test_stops_and_preempted_requests(engine: Engine, checkpoints: Checkpoints, way: Way) -> None:
    """What the host decides, which does not differ between ways of drafting."""
    check_stops(engine, checkpoints, way)
    shapes = ((100, 60, 0), (120, 50, 1), (110, 40, 2), (125, 30, 3))
    check_preemption(engine, checkpoints, way, shapes)
