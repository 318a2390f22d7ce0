"""Limits of latent attention on NPUs. Not run on hardware."""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_WIDEST = 512
_WIDEST_ROPE = 128
_ROWS = 16
# The compiler for A5 crashes on tiles of 16 rows of 16-bit values.
_ROWS_OF_HALVES = {"A5": 32}


def supports_mla_attention_triton(
    facts: DeviceFacts,
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
) -> Support:
    """One dtype throughout; latents of at most 512 values; blocks of a multiple of 16 rows.

    On A5 a multiple of 32 rows of 16-bit values.
    """
    rows = _ROWS_OF_HALVES.get(facts.family, _ROWS) if latents.element_size() == 2 else _ROWS
    return first_refusal(
        (
            q_latent.dtype in FLOATS and latents.dtype == q_latent.dtype,
            f"queries of {q_latent.dtype} with latents of {latents.dtype}, the kernel takes one "
            "of float32, bfloat16, float16 for both",
        ),
        (
            q_latent.shape[2] <= _WIDEST,
            f"latents of {q_latent.shape[2]} values, the accumulator of the matrix unit is cut "
            f"for {_WIDEST}",
        ),
        (
            q_rope.shape[2] <= _WIDEST_ROPE,
            f"{q_rope.shape[2]} rotated values, the kernel takes {_WIDEST_ROPE}",
        ),
        (
            latents.shape[1] % rows == 0,
            f"blocks of {latents.shape[1]} rows, the kernel reads tiles of {rows}",
        ),
        (
            all(x.stride(2) == 1 for x in (latents, ropes)),
            "a cache with gaps inside a row, the kernel reads stride 1",
        ),
        (
            block_table.stride(1) == 1,
            f"block table with stride {block_table.stride(1)} along blocks, the kernel reads "
            "stride 1",
        ),
    )
