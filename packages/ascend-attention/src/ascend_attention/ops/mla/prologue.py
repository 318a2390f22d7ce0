"""The steps of the prologue, which run one after the other or on two streams, and its result.

``latent_kv`` is ``[T, L + D]``; what else they take and give is named in :class:`Prologue` and
:func:`ascend_attention.ops.mla.mla_prologue`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.ops.rotary import rms_norm_rotary


class Prologue(NamedTuple):
    """What attention reads.

    Attributes:
        latent: ``[T, L]`` normed query latent.
        query: ``[T, h, D]`` normed and rotated.
        kv: ``[T, D]`` normed and rotated.
    """

    latent: torch.Tensor
    query: torch.Tensor
    kv: torch.Tensor


def finish_kv(
    latent_kv: torch.Tensor, kv_norm: torch.Tensor, eps: float, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Norm and rotation of the key-value rows: ``[T, D]``."""
    rows = latent_kv[:, -kv_norm.shape[0] :].contiguous().unsqueeze(1)
    return rms_norm_rotary(rows, kv_norm, eps, cos, sin).squeeze(1)


def norm_latent(latent_kv: torch.Tensor, q_norm: torch.Tensor, eps: float) -> torch.Tensor:
    """Norm of the query latent: ``[T, L]``."""
    return rms_norm(latent_kv[:, : q_norm.shape[0]].contiguous(), q_norm, eps)


def finish_query(
    query_rows: torch.Tensor, width: int, eps: float, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Norm and rotation of query heads ``[T, h * D]`` of ``width`` channels: ``[T, h, D]``."""
    heads = query_rows.unflatten(-1, (query_rows.shape[1] // width, width))
    return rms_norm_rotary(heads, None, eps, cos, sin)
