"""MTP with one to seven drafts a step, on a CPU."""

from __future__ import annotations

import pytest

from .draft_widths import TARGETS, check
from .harness import Checkpoints, EnginePool

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("name", TARGETS)
def test_one_to_seven(engines: EnginePool, checkpoints: Checkpoints, name: str) -> None:
    check(engines, checkpoints, name)
