"""Kimi-K3 under its DSpark draft on the simulated NPU, the target's decode steps in graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
from ascend_ops_core.testing.simulated_npu import counters

from ..harness import Checkpoints, EnginePool
from ..k3_dspark import NAME, check_drafts, settings
from .test_kimi_linear import settings as graphs

pytestmark = pytest.mark.engine_npu
WIDTH = 3


def test_tokens_and_drafts(engines: EnginePool, checkpoints: Checkpoints, tmp_path: Path) -> None:
    # The anchor's place predicts nothing here, so that a block has a row more.
    draft = settings(tmp_path, WIDTH, sample_from_anchor=False, logit_scale=1.5)
    engine = engines.get(NAME, **graphs(4, 8, 12), **draft)
    before = counters()
    check_drafts(engine, checkpoints.oracle(NAME), tmp_path, WIDTH)
    assert (counters() - before).replays > 0
