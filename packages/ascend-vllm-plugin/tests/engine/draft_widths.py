"""Every number of drafts of a model's own draft layer, from one to seven, in one engine."""

from __future__ import annotations

from typing import Any

from ascend_ops_core.testing.language_models import random_prompt

from .harness import Checkpoints, EnginePool, Request
from .speculation import check_every_width

WIDEST = 7
TARGETS: dict[str, dict[str, Any]] = {
    "mixed": {},
    "v3": {},
    "v32": {},
    "glm": {},
    "m3": {"hf_overrides": {"architectures": ["MiniMaxM3SparseForCausalLM"]}},
    "k3": {"hf_overrides": {"architectures": ["KimiLinearForCausalLM"]}},
}
"""Specs with a draft layer, and settings of an engine that serves their text alone."""


def check(engines: EnginePool, checkpoints: Checkpoints, name: str) -> None:
    """Greedy tokens are those without drafts; requests join and end within drafts of others."""
    oracle = checkpoints.oracle(name)
    engine = engines.get(
        name,
        speculative_config={"method": "mtp", "num_speculative_tokens": WIDEST},
        **TARGETS[name],
    )
    vocab = checkpoints.spec(name).vocab_size
    requests = [
        Request(prompt_of(oracle, vocab, length, count), count, at)
        for length, count, at in ((5, 6, 0), (66, 4, 1))
    ]
    texts = [oracle.greedy(one.prompt, one.count).tokens for one in requests]
    check_every_width(engine, requests, texts)


def prompt_of(oracle: Any, vocab: int, length: int, count: int) -> list[int]:
    """A random prompt; where rounding may decide a selection, one where it does not."""
    if hasattr(oracle, "clear_prompt"):
        prompt: list[int] = oracle.clear_prompt(length, count, seed=length)
        return prompt
    return random_prompt(length, vocab, seed=length)
