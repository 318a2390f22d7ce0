"""Hidden states of requests are written to files, on the simulated NPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..extraction import EARLY, check_groups_of_caches, check_states, engine_of
from ..harness import Checkpoints, EnginePool

pytestmark = pytest.mark.engine_npu


def test_states_are_those_of_transformers(
    engines: EnginePool, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    check_states(engine_of(engines, "stories-llama", tmp_path), checkpoints, "stories-llama")
    # Whose connector would be found by engines that start beside it.
    engines.close()


def test_latents_beside_recurrent_states(
    engines: EnginePool, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    name = "kimi_linear"
    engine = engine_of(engines, name, tmp_path, EARLY, enable_prefix_caching=False)
    check_groups_of_caches(engine, checkpoints, name, prefix=False)
    engines.close()
