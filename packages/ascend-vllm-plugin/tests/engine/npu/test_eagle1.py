"""The first EAGLE on the simulated NPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..eagle1 import TARGET, write_draft
from ..harness import Checkpoints, EnginePool, assert_all_match
from ..speculation import Way, batch, check_full_context, engine_of

pytestmark = pytest.mark.engine_npu


def test_tokens_are_the_target_s(
    engines: EnginePool, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    way = Way(TARGET, "eagle", 3, {"model": str(write_draft(tmp_path))})
    engine = engine_of(engines, way)
    requests = batch([(1, 10, 0), (200, 8, 0), (17, 9, 2)], seed=4)
    with engine.scheduling_at_most(90):
        assert_all_match(checkpoints.oracle(TARGET), requests, engine.run(requests))
    check_full_context(engine, checkpoints, way)
