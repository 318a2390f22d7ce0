"""Trained DFlash2, DSpark and Eagle3 drafts of a Llama and of DeepSeek-V4 on the simulated NPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..harness import Engine
from ..trained_drafts import DRAFTS, Draft, check_acceptance, check_widths, start

pytestmark = pytest.mark.engine_npu


@pytest.fixture(scope="module", params=DRAFTS, ids=str)
def draft(request: pytest.FixtureRequest) -> Draft:
    return request.param


@pytest.fixture(scope="module")
def engine(draft: Draft, in_process: None) -> Iterator[Engine]:
    engine = start(draft, additional_config={"cache_dtype": "model"})
    yield engine
    engine.close()


def test_tokens_and_acceptance(engine: Engine, draft: Draft) -> None:
    check_acceptance(engine, draft, most=3)


def test_every_number_of_drafts(engine: Engine, draft: Draft) -> None:
    check_widths(engine, draft)
