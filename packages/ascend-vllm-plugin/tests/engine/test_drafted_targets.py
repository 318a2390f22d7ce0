"""MiniMax-M3 and DeepSeek-V3.2 under drafts that read text, with preempted requests."""

from __future__ import annotations

from typing import Any

import pytest

from .drafted_targets import NGRAM, SUFFIX, check_target
from .harness import Checkpoints, EnginePool

pytestmark = pytest.mark.engine

M3: dict[str, Any] = {"hf_overrides": {"architectures": ["MiniMaxM3SparseForCausalLM"]}}


@pytest.mark.parametrize(
    ("name", "method", "width", "settings"),
    [
        ("m3", NGRAM, 4, M3),
        ("v32", SUFFIX, 5, {}),
    ],
    ids=["m3-ngram", "v32-suffix"],
)
def test_tokens_are_the_target_s(
    engines: EnginePool,
    checkpoints: Checkpoints,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    method: dict[str, Any],
    width: int,
    settings: dict[str, Any],
) -> None:
    check_target(engines, checkpoints, monkeypatch, name, method, width, **settings)
