"""Hidden states of requests are written to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .extraction import EARLY, check_groups_of_caches, check_states, engine_of
from .harness import Checkpoints, EnginePool

pytestmark = pytest.mark.engine
KIMI_K3 = {
    "hf_overrides": {"architectures": ["KimiLinearForCausalLM"]},
    "enable_prefix_caching": False,
}


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


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mixed", {"max_model_len": 1024, "kv_cache_memory_bytes": 1 << 28}),
        ("k3", KIMI_K3),
        ("qwen3_next", {"enable_prefix_caching": False}),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_models_with_several_groups_of_caches(
    engines: EnginePool,
    checkpoints: Checkpoints,
    tmp_path: Path,
    name: str,
    settings: dict[str, Any],
) -> None:
    engine = engine_of(engines, name, tmp_path, EARLY, **settings)
    check_groups_of_caches(engine, checkpoints, name, prefix="max_model_len" in settings)
    engines.close()


def test_prefixes_beside_recurrent_states_are_refused(engines: EnginePool, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="enable_prefix_caching"):
        engine_of(engines, "kimi_linear", tmp_path, EARLY)
