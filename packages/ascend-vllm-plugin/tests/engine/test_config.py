"""The same model from other spellings of its config, and other ways to start the engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ascend_models_deepseek.testing import Oracle, random_prompt

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

SPEC = "mixed"
VOCAB = 512


@pytest.fixture
def requests_() -> list[Request]:
    return [Request(random_prompt(n, VOCAB, seed=n), 12) for n in (5, 129, 370)]


def matches(folder: Path, requests: list[Request], oracle: Oracle, **settings: Any) -> None:
    engine = Engine(folder, **settings)
    try:
        assert_all_match(oracle, requests, engine.run(requests))
    finally:
        engine.close()


def test_transformers_keys(
    engines: EnginePool, checkpoints: Checkpoints, requests_: list[Request], tmp_path: Path
) -> None:
    """A config.json that transformers saved describes the same model."""
    engines.close()
    oracle = checkpoints.oracle(SPEC)
    source = checkpoints.folder(SPEC)
    oracle.model.config.save_pretrained(tmp_path)
    keys = set(json.loads((tmp_path / "config.json").read_text()))
    assert {"layer_types", "mlp_layer_types", "rope_parameters"} <= keys
    assert not {"compress_ratios", "num_hash_layers", "rope_scaling"} & keys
    shutil.copy(source / "model.safetensors", tmp_path)
    speculative = {"method": "mtp", "num_speculative_tokens": 1}
    matches(tmp_path, requests_, oracle, speculative_config=speculative)


def test_ratio_one_is_no_compression(
    engines: EnginePool, checkpoints: Checkpoints, requests_: list[Request], tmp_path: Path
) -> None:
    engines.close()
    source = checkpoints.folder(SPEC)
    keys = json.loads((source / "config.json").read_text())
    keys["compress_ratios"] = [ratio or 1 for ratio in keys["compress_ratios"]]
    (tmp_path / "config.json").write_text(json.dumps(keys))
    shutil.copy(source / "model.safetensors", tmp_path)
    matches(tmp_path, requests_, checkpoints.oracle(SPEC))


def test_without_enforce_eager(
    engines: EnginePool, checkpoints: Checkpoints, requests_: list[Request]
) -> None:
    """What a user gets who asks for nothing in particular."""
    engines.close()
    matches(checkpoints.folder(SPEC), requests_, checkpoints.oracle(SPEC), enforce_eager=False)


def test_compilation_is_refused(
    engines: EnginePool, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM switches compilation off for this architecture, and logs it, unless told not to."""
    from vllm.distributed import cleanup_dist_env_and_memory

    engines.close()
    monkeypatch.setenv("VLLM_USE_BREAKABLE_CUDAGRAPH", "0")
    try:
        with pytest.raises(Exception, match=r"(?s)compil.*enforce.eager"):
            Engine(checkpoints.folder(SPEC), enforce_eager=False, compilation_config={"mode": 3})
    finally:
        cleanup_dist_env_and_memory()
