"""The NZ layout of weights by torch_npu; the products are torch's own.

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_FRACTAL_NZ = 29  # ACL_FORMAT_FRACTAL_NZ
_SIDE = 16


def to_nz(weight: torch.Tensor) -> torch.Tensor:
    """``npu_format_cast`` of a weight ``[N, K]`` to the cube's layout of 16 x 16 blocks."""
    cast: torch.Tensor = torch.ops.npu.npu_format_cast(weight, _FRACTAL_NZ)
    return cast


def supports_to_nz(facts: DeviceFacts, weight: torch.Tensor) -> Support:
    """A 16-bit matrix of whole blocks; whatever else stays ND."""
    return first_refusal(
        (weight.dim() == 2, f"{weight.dim()} axes, NZ is a layout of matrices"),
        (
            weight.dtype in (torch.float16, torch.bfloat16),
            f"{weight.dtype}, products of it read ND",
        ),
        (
            all(size > 0 and size % _SIDE == 0 for size in weight.shape),
            f"shape {list(weight.shape)}, blocks are {_SIDE} x {_SIDE}",
        ),
    )
