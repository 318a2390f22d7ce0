"""What the kernels of attention residuals take. torch_npu has no operator for them.

Not run on hardware.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.ops.norm.npu import takes_float
from ascend_ops_core.support import Support


def supports_attn_res_triton(
    facts: DeviceFacts,
    prefix: torch.Tensor,
    blocks: torch.Tensor,
    norm_weight: torch.Tensor,
    proj: torch.Tensor,
    eps: float,
) -> Support:
    """Any float dtype, any number of blocks."""
    return takes_float(prefix)


def supports_add_attn_res_triton(
    facts: DeviceFacts,
    prefix: torch.Tensor,
    update: torch.Tensor,
    blocks: torch.Tensor,
    norm_weight: torch.Tensor,
    proj: torch.Tensor,
    eps: float,
) -> Support:
    """Any float dtype, any number of blocks."""
    return takes_float(prefix)
