"""Limits of verification on NPUs. torch_npu has no such operators."""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import SUPPORTED, Support, first_refusal

EXACT_TOKENS = 1 << 24
"""Kernels keep tokens in float32, which holds every integer up to here."""


def _fits(target_probs: torch.Tensor) -> Support:
    vocabulary = target_probs.shape[1]
    return first_refusal(
        (
            vocabulary < EXACT_TOKENS,
            f"vocabulary of {vocabulary}, the kernel takes fewer than {EXACT_TOKENS}",
        )
    )


def supports_expand_to_drafts_triton(
    facts: DeviceFacts,
    out: torch.Tensor,
    values: torch.Tensor,
    cumulative: torch.Tensor,
    replace_from: float,
    replace_to: float,
) -> Support:
    """Everything that the operator takes."""
    return SUPPORTED


def supports_verify_greedy_triton(
    facts: DeviceFacts,
    out: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    argmax: torch.Tensor,
    bonus: torch.Tensor,
    chosen: torch.Tensor | None,
) -> Support:
    """Everything that the operator takes."""
    return SUPPORTED


def supports_verify_random_triton(
    facts: DeviceFacts,
    out: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    bonus: torch.Tensor,
    recovered: torch.Tensor,
    uniform: torch.Tensor,
    chosen: torch.Tensor | None,
) -> Support:
    """Everything that the operator takes."""
    return SUPPORTED


def supports_write_accepted_triton(
    facts: DeviceFacts,
    out: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    counts: torch.Tensor,
    recovered: torch.Tensor,
    bonus: torch.Tensor,
    chosen: torch.Tensor | None,
) -> Support:
    """Everything that the operator takes."""
    return SUPPORTED


def supports_recovered_tokens_triton(
    facts: DeviceFacts,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    inverse_noise: torch.Tensor,
    scale: torch.Tensor | None,
) -> Support:
    """Vocabularies whose tokens float32 tells apart."""
    return _fits(target_probs)


def supports_accepted_in_block_triton(
    facts: DeviceFacts,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    uniform: torch.Tensor,
    most: int,
) -> Support:
    """Vocabularies whose tokens float32 tells apart."""
    return _fits(target_probs)
