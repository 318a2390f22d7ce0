"""The first EAGLE: a draft that reads the target's last hidden state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .eagle1 import TARGET, write_draft
from .harness import Checkpoints, EnginePool, assert_all_match
from .speculation import Way, batch, check_every_width, check_full_context, engine_of

pytestmark = pytest.mark.engine
SMALL_CACHE: dict[str, Any] = {"num_gpu_blocks_override": 48, "block_size": 16}


def test_tokens_are_the_target_s(
    engines: EnginePool, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    way = Way(TARGET, "eagle", 7, {"model": str(write_draft(tmp_path))})
    engine = engine_of(engines, way, **SMALL_CACHE)
    assert type(engine.runner.drafter.model).__name__ == "EagleLlamaForCausalLM"
    oracle = checkpoints.oracle(TARGET)
    requests = batch([(1, 12, 0), (200, 12, 0), (17, 9, 2)], seed=4)
    with engine.scheduling_at_most(90):
        assert_all_match(oracle, requests, engine.run(requests))
    check_full_context(engine, checkpoints, way)
    few = batch([(1, 6, 0), (45, 6, 0)], seed=5)
    check_every_width(engine, few, [oracle.greedy(r.prompt, r.count).tokens for r in few])
