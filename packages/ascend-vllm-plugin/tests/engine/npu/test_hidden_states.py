"""Hidden states of requests are written to files, on the simulated NPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..extraction import check_states, engine_of
from ..harness import Checkpoints, EnginePool

pytestmark = pytest.mark.engine_npu


def test_states_are_those_of_transformers(
    engines: EnginePool, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    check_states(engine_of(engines, "stories-llama", tmp_path), checkpoints, "stories-llama")
    # Whose connector would be found by engines that start beside it.
    engines.close()
