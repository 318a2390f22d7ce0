"""Limits of n-gram drafting on NPUs. torch_npu has no such operator."""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

EXACT_PLACES = 1 << 24
"""The kernel keeps places in float32, which holds every integer up to here."""


def supports_propose_ngrams_triton(
    facts: DeviceFacts,
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    shortest: int,
    longest: int,
    most: int,
    limit: int,
) -> Support:
    """Texts whose places float32 tells apart."""
    width = tokens.shape[1]
    return first_refusal(
        (
            width < EXACT_PLACES,
            f"texts of {width} tokens, the kernel takes fewer than {EXACT_PLACES}",
        )
    )
