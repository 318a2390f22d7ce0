"""Targets with caches of their own kinds under drafts that read text, thrown out now and then."""

from __future__ import annotations

from typing import Any

import pytest

from .harness import Checkpoints, EnginePool, Request, assert_all_match
from .speculation import interrupted
from .told import Told

NGRAM: dict[str, Any] = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2}
SUFFIX: dict[str, Any] = {"method": "suffix"}
SHAPES = [(70, 9, 0), (33, 12, 1), (5, 10, 3)]


def check_target(
    engines: EnginePool,
    checkpoints: Checkpoints,
    patch: pytest.MonkeyPatch,
    name: str,
    method: dict[str, Any],
    width: int,
    **settings: Any,
) -> None:
    """A batch in chunks whose requests are preempted while they have drafts.

    Texts of random weights hardly repeat, so that n-grams are told what the target will say.
    """
    oracle = checkpoints.oracle(name)
    engine = engines.get(
        name, speculative_config={**method, "num_speculative_tokens": width}, **settings
    )
    requests = [
        Request(oracle.clear_prompt(length, count + width, seed=900 + length), count, at)
        for length, count, at in SHAPES
    ]
    if method["method"] == "ngram":
        told = Told(oracle, requests, worst=False, most=width)
        patch.setattr(engine.runner.drafter, "propose", told)
    before = engine.metric("vllm:spec_decode_num_draft_tokens")
    with engine.scheduling_at_most(50), interrupted(engine, 4, 7):
        results = engine.run(requests)
    assert engine.metric("vllm:spec_decode_num_draft_tokens") > before
    assert_all_match(oracle, requests, results)
