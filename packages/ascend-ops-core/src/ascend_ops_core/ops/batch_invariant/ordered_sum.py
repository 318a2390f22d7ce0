"""Sums in an order that is written here and nowhere else.

Every step is one elementwise operation, which torch rounds in the same way wherever an element
lies, with any number of threads. Blocks of 64 are added in order, each block folded in halves.
"""

from __future__ import annotations

import torch

BLOCK = 64


def fold(terms: torch.Tensor) -> torch.Tensor:
    """Sum over axis 0, the upper half onto the lower until one is left."""
    while terms.shape[0] > 1:
        half = (terms.shape[0] + 1) // 2
        low, high = terms[:half], terms[half:]
        folded = low[: high.shape[0]] + high
        terms = torch.cat([folded, low[high.shape[0] :]])
    return terms[0]


def ordered_sum(terms: torch.Tensor) -> torch.Tensor:
    """Sum over axis 0."""
    total = torch.zeros(terms.shape[1:], dtype=torch.float32, device=terms.device)
    for start in range(0, terms.shape[0], BLOCK):
        total = total + fold(terms[start : start + BLOCK])
    return total
