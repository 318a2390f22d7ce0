"""Definition of the penalties."""

from __future__ import annotations

import torch


def apply_penalties(
    logits: torch.Tensor,
    prompt_mask: torch.Tensor,
    output_counts: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> None:
    """See :func:`ascend_ops_core.ops.sampling.apply_penalties`."""
    x = logits.float()
    in_output = output_counts > 0
    repeated = torch.where(x > 0, x / repetition[:, None], x * repetition[:, None])
    x = torch.where(prompt_mask | in_output, repeated, x)
    x = x - frequency[:, None] * output_counts - presence[:, None] * in_output
    logits.copy_(x)
