"""How much of the unified buffer the routers' kernels take per token."""

from __future__ import annotations

from ascend_ops_core.tiling import next_power_of_two

# Of a logit, as float32: itself, its score, its rank, what is compared and what is selected.
_LIVE_BYTES = 24
# Of a choice: weight and id, the id as int64, and copies of them.
_CHOICE_BYTES = 32
# Of a pair of an expert and a choice: the logit where the ids are equal.
_PAIR_BYTES = 12

LEAST_CHOICES = 8
"""Choices as the kernels see them; a row of the buffer has at least 32 bytes."""


def choices_of(top_k: int) -> int:
    """Padded number of choices of a token."""
    return max(next_power_of_two(top_k), LEAST_CHOICES)


def topk_bytes(experts: int, top_k: int) -> int:
    """Bytes of a token in the kernel of ``topk_routing``, besides the logits that are loaded."""
    return next_power_of_two(experts) * _LIVE_BYTES + choices_of(top_k) * _CHOICE_BYTES


def hash_bytes(experts: int, top_k: int) -> int:
    """The same for ``hash_routing``."""
    pairs = next_power_of_two(experts) * choices_of(top_k)
    return topk_bytes(experts, top_k) + pairs * _PAIR_BYTES
