"""Definitions of the gates."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def gdn_gates(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    beta_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.linear_gates.gdn_gates`."""
    decay = -a_log.float().exp() * F.softplus(a.float() + dt_bias.float())
    return decay, b.float().sigmoid().to(beta_dtype)


def kda_gates(
    f: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    lower_bound: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.linear_gates.kda_gates`."""
    rate = a_log.float().exp().unsqueeze(-1)
    r = f.float() + dt_bias.float()
    decay = -rate * F.softplus(r) if lower_bound is None else lower_bound * (rate * r).sigmoid()
    return decay, b.float().sigmoid()
