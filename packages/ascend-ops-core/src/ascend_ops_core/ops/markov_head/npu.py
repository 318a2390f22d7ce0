"""Limits of the Markov head's step on NPUs. torch_npu has no such operator."""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import SUPPORTED, Support


def supports_markov_logits_triton(
    facts: DeviceFacts,
    base: torch.Tensor,
    tokens: torch.Tensor,
    embedding: torch.Tensor,
    projection: torch.Tensor,
    scale: float,
) -> Support:
    """Everything that the operator takes."""
    return SUPPORTED
