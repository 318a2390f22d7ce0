"""Limits of the NPU implementations.

torch_npu's ``npu_qkv_rms_norm_rope_cache`` writes a cache in the same call and ``npu_mrope``
neither splits nor norms, so nothing in torch_npu does this work alone.
"""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def supports_split_qkv_rmsnorm_rope_triton(
    facts: DeviceFacts, qkv: torch.Tensor, *rest: Any
) -> Support:
    """Any float dtype and any number of heads."""
    return _floats(qkv)


def supports_split_qkv_rmsnorm_mrope_triton(
    facts: DeviceFacts, qkv: torch.Tensor, *rest: Any
) -> Support:
    """Any float dtype and any number of heads."""
    return _floats(qkv)


def supports_split_qkv_tp_variance_triton(
    facts: DeviceFacts, qkv: torch.Tensor, *rest: Any
) -> Support:
    """Any float dtype and any number of heads."""
    return _floats(qkv)


def supports_split_qkv_tp_apply_triton(
    facts: DeviceFacts, qkv: torch.Tensor, *rest: Any
) -> Support:
    """Any float dtype and any number of heads."""
    return _floats(qkv)


def _floats(qkv: torch.Tensor) -> Support:
    return first_refusal((qkv.dtype in _FLOATS, f"qkv of {qkv.dtype}, the kernel takes float"))
