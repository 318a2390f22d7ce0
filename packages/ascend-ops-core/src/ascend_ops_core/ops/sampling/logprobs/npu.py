"""Limits of the ids whose log-probabilities are wanted. torch_npu has no such operator."""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import SUPPORTED, Support


def supports_logprob_token_ids_triton(
    facts: DeviceFacts,
    sampled: torch.Tensor,
    top_ids: torch.Tensor | None,
    requests: torch.Tensor,
    custom_counts: torch.Tensor,
    custom_ids: torch.Tensor,
    columns: int,
) -> Support:
    """Whatever the definition takes."""
    return SUPPORTED
