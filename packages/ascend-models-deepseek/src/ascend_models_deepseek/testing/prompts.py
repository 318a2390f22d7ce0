"""Deterministic token prompts for tests."""

from __future__ import annotations

import random


def random_prompt(length: int, vocab_size: int, seed: int = 0, lowest: int = 4) -> list[int]:
    """Draw `length` ids from `[lowest, vocab_size)`; a longer prompt extends a shorter one."""
    generator = random.Random(seed)
    return [generator.randrange(lowest, vocab_size) for _ in range(length)]
