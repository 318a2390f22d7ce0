"""MiniMax-M3 and DeepSeek-V3.2 under drafts that read text, on the simulated NPU."""

from __future__ import annotations

from typing import Any

import pytest

from ..drafted_targets import NGRAM, SUFFIX, check_target
from ..harness import Checkpoints, EnginePool
from ..test_drafted_targets import M3

pytestmark = pytest.mark.engine_npu


@pytest.mark.parametrize(
    ("name", "method", "width", "settings"),
    [
        ("m3", SUFFIX, 3, M3),
        ("v32", NGRAM, 2, {}),
    ],
    ids=["m3-suffix", "v32-ngram"],
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
