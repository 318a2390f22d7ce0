"""Trained DFlash2, DSpark and Eagle3 drafts of a Llama and of DeepSeek-V4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .harness import Engine
from .trained_drafts import (
    DRAFTS,
    Draft,
    check_acceptance,
    check_memory,
    check_scheduling,
    check_widths,
    start,
)

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", params=DRAFTS, ids=str)
def draft(request: pytest.FixtureRequest) -> Draft:
    return request.param


@pytest.fixture(scope="module")
def engine(draft: Draft, in_process: None) -> Iterator[Engine]:
    settings: dict[str, Any] = {}
    if draft.target == "v4":
        # Two blocks of compressed rows make a hit.
        settings = {"max_model_len": 640, "enable_prefix_caching": True}
    engine = start(draft, **settings)
    yield engine
    engine.close()


def test_tokens_and_acceptance(engine: Engine, draft: Draft) -> None:
    check_acceptance(engine, draft)


def test_every_number_of_drafts(engine: Engine, draft: Draft) -> None:
    check_widths(engine, draft)


def test_a_full_context_a_prefix_hit_and_preemption(engine: Engine, draft: Draft) -> None:
    """Where the draft's caches lie in blocks with the target's."""
    if draft.target == "v4":
        check_scheduling(engine, draft)


def test_memory_is_what_was_planned(engine: Engine, draft: Draft) -> None:
    check_memory(engine, draft)
