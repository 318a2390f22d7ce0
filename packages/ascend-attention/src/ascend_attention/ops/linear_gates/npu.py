"""Limits of the gates' kernels; torch_npu has no operator for them."""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_MOST_HEADS = 512
_MOST_WIDTH = 512


def supports_gdn_gates_triton(
    facts: DeviceFacts,
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    beta_dtype: torch.dtype,
) -> Support:
    """As many heads as a tile takes."""
    return first_refusal(
        (a.shape[1] <= _MOST_HEADS, f"{a.shape[1]} heads, the kernel takes {_MOST_HEADS}")
    )


def supports_kda_gates_triton(
    facts: DeviceFacts,
    f: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    lower_bound: float | None,
) -> Support:
    """Heads as wide as a tile takes."""
    return first_refusal(
        (f.shape[1] <= _MOST_HEADS, f"{f.shape[1]} heads, the kernel takes {_MOST_HEADS}"),
        (f.shape[2] <= _MOST_WIDTH, f"heads of {f.shape[2]}, the kernel takes {_MOST_WIDTH}"),
    )
