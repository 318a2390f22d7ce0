"""Kimi-K3 under its DSpark draft, against the formulas of both."""

from __future__ import annotations

from pathlib import Path

import pytest
from ascend_ops_core.testing.language_models import random_prompt

from .harness import Checkpoints, EnginePool, Request
from .k3_dspark import (
    NAME,
    check_an_image_and_drawn_drafts,
    check_drafts,
    check_planned,
    run,
    settings,
    target_of,
)

pytestmark = pytest.mark.engine
WIDTH = 7


def test_tokens_and_drafts(engines: EnginePool, checkpoints: Checkpoints, tmp_path: Path) -> None:
    target = target_of(checkpoints)
    engine = engines.get(NAME, enable_prefix_caching=True, **settings(tmp_path, WIDTH))
    check_drafts(engine, target, tmp_path, WIDTH)
    check_an_image_and_drawn_drafts(engine, target, tmp_path, WIDTH)
    check_planned(engine, checkpoints.folder(NAME), tmp_path)
    # A prefix of whole blocks: states, latents and the draft's context come from the caches.
    # vLLM leaves the last block of a hit out where a draft reads streams.
    prompt = random_prompt(600, 490, seed=77)
    (first,), drafted = run(engine, [Request(prompt, 12)])
    (again,), drafted_again = run(engine, [Request(prompt, 12)])
    assert first.cached == 0 < again.cached
    assert again.tokens == first.tokens
    assert drafted_again == drafted
