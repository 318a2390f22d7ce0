"""Limits of the MLA cache's writes on NPUs.

``npu_kv_rmsnorm_rope_cache`` leaves rotated pairs half-split in the cache, whichever way they came,
and wants cosines in the rows' dtype, which rounds every angle's; queries here keep their channels
and angles stay in float32. So there is no adaptor. Not run on hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_WIDEST = 4096


def supports_kv_rmsnorm_rope_cache_triton(
    facts: DeviceFacts,
    kv: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    interleaved: bool,
) -> Support:
    """float32, bfloat16 and float16; latents of up to 4096 values; no gaps inside a row.

    On A5 at least two pairs, of a single one its compiler makes invalid code.
    """
    return first_refusal(
        (
            facts.family != "A5" or cos.shape[1] > 1,
            "a single rotated pair, of which the compiler for A5 makes invalid code",
        ),
        (
            kv.dtype in FLOATS and latents.dtype in FLOATS,
            f"rows of {kv.dtype} into caches of {latents.dtype}, the kernel converts between "
            "float32, bfloat16, float16",
        ),
        (
            weight.shape[0] <= _WIDEST,
            f"latents of {weight.shape[0]} values, the kernel norms up to {_WIDEST} at once",
        ),
        (
            latents.stride(2) == ropes.stride(2) == 1,
            f"caches with strides {latents.stride(2)} and {ropes.stride(2)} inside a row, the "
            "kernel writes stride 1",
        ),
    )
