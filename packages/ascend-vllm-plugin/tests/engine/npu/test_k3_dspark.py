"""Kimi-K3 under its DSpark draft on the simulated NPU, the target's decode steps in graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
from ascend_ops_core.testing.simulated_npu import counters

from ..harness import Checkpoints, EnginePool
from ..k3_dspark import (
    NAME,
    check_an_image_and_drawn_drafts,
    check_drafts,
    settings,
    target_of,
)
from .test_kimi_linear import settings as graphs

pytestmark = pytest.mark.engine_npu
WIDTH = 7


def test_tokens_and_drafts(engines: EnginePool, checkpoints: Checkpoints, tmp_path: Path) -> None:
    target = target_of(checkpoints)
    # The anchor's place predicts nothing here, so that a block has a row more.
    draft = settings(tmp_path, WIDTH, sample_from_anchor=False, logit_scale=1.5)
    engine = engines.get(NAME, **graphs(WIDTH + 1, 2 * (WIDTH + 1), 3 * (WIDTH + 1)), **draft)
    before = counters()
    check_drafts(engine, target, tmp_path, WIDTH)
    assert (counters() - before).replays > 0
    check_an_image_and_drawn_drafts(engine, target, tmp_path, WIDTH)
