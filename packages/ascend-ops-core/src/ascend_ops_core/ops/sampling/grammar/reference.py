"""Definition of the grammar bitmask."""

from __future__ import annotations

import torch


def apply_grammar_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor) -> None:
    """See :func:`ascend_ops_core.ops.sampling.apply_grammar_bitmask`."""
    bits = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    allowed = (bitmask[:, :, None] >> bits) & 1
    allowed = allowed.flatten(1)[:, : logits.shape[1]]
    real = rows >= 0
    forbidden = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    forbidden[rows[real].long()] = allowed[real] == 0
    logits.masked_fill_(forbidden, float("-inf"))
