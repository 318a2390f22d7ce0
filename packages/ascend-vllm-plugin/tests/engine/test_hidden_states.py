"""Hidden states of requests are written to files."""

from __future__ import annotations

from pathlib import Path

import pytest

from .extraction import check_states, engine_of
from .harness import Checkpoints, EnginePool

pytestmark = pytest.mark.engine


def test_states_are_those_of_transformers(
    engines: EnginePool, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    engine = engine_of(engines, "stories-qwen3", tmp_path, block_size=16)
    check_states(engine, checkpoints, "stories-qwen3")
    # A request that ends before anything was computed leaves no file.
    from vllm import SamplingParams

    before = sorted(tmp_path.iterdir())
    engine.engine.add_request("gone/..", {"prompt_token_ids": [5, 6]}, SamplingParams())
    engine.engine.abort_request(["gone/.."])
    engine.engine.step()
    assert sorted(tmp_path.iterdir()) == before
    # Whose connector would be found by engines that start beside it.
    engines.close()
