"""Definition of the scaled sum."""

from __future__ import annotations

import torch


def muls_add(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.muls_add.muls_add`."""
    return (x.float() * scale + y.float()).to(x.dtype).contiguous()
