"""The MLA cache's writes by ``npu_kv_rmsnorm_rope_cache``, and the limits of all implementations.

The operator takes interleaved pairs and leaves them half-split in the cache, so it fits where a
layer asks for that order. Cosines, sines and the norm's weight are rounded to the rows' dtype, as
transformers rounds its table. Not run on hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_NAME = "npu_kv_rmsnorm_rope_cache"
_RANK = 512
_ROTARY = 64
_HALVES = (torch.bfloat16, torch.float16)
_ALIGNED_ROWS = 32
_WIDEST = 4096


def kv_rmsnorm_rope_cache(
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
    split: bool,
) -> None:
    """See :func:`ascend_attention.ops.mla_cache.kv_rmsnorm_rope_cache`."""
    if not interleaved:
        latent, rope = kv.split([weight.shape[0], 2 * cos.shape[1]], dim=-1)
        kv = torch.cat((latent, rope.unflatten(-1, (2, -1)).mT.flatten(-2)), dim=-1)
    torch.ops.npu.npu_kv_rmsnorm_rope_cache(
        kv.contiguous()[None, None],
        weight.to(kv.dtype),
        both_halves(cos, kv.dtype)[None, None],
        both_halves(sin, kv.dtype)[None, None],
        rows_of(block, offset, latents.shape[1]),
        ropes.unsqueeze(2),
        latents.unsqueeze(2),
        epsilon=eps,
        cache_mode="PA_BNSD",
    )


def both_halves(angles: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``[T, R]`` of ``[T, R / 2]``: the value of a pair for each of its elements, half-split."""
    return torch.cat((angles, angles), dim=-1).to(dtype)


def rows_of(block: torch.Tensor, offset: torch.Tensor, rows: int) -> torch.Tensor:
    """``[T]`` int64 numbers of rows in caches with blocks of ``rows``; -1, no row, for padding."""
    real = (block >= 0) & (offset >= 0)
    return torch.where(real, block.long() * rows + offset.long(), -1)


def supports_kv_rmsnorm_rope_cache(
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
    split: bool,
) -> Support:
    """A2 and A3, halves, rows of 512 + 64 that are written half-split, blocks in multiples of 32.

    Sizes and families are those of torch_npu's documentation; that of CANN's operator asks for
    aligned blocks, and says that a row of -1 writes nothing.
    """
    widths = (weight.shape[0], 2 * cos.shape[1])
    blocks, rows = latents.shape[:2]
    return first_refusal(
        (
            facts.family in ("A2", "A3"),
            f"device family {facts.family}, {_NAME} is documented for A2, A3",
        ),
        (
            split or not interleaved,
            f"interleaved pairs that stay so, {_NAME} writes them half-split",
        ),
        (
            kv.dtype in _HALVES and latents.dtype == kv.dtype,
            f"rows of {kv.dtype} into caches of {latents.dtype}, {_NAME} takes one of "
            "torch.bfloat16, torch.float16 for both",
        ),
        (
            widths == (_RANK, _ROTARY),
            f"rows of {widths[0]} + {widths[1]}, {_NAME} takes {_RANK} + {_ROTARY}",
        ),
        (
            rows % _ALIGNED_ROWS == 0,
            f"blocks of {rows} rows, {_NAME} takes multiples of {_ALIGNED_ROWS}",
        ),
        (
            kv.numel() > 0 and latents.numel() > 0,
            f"no tokens or no rows, {_NAME} needs some",
        ),
        (
            # Steps differ, and every reason is logged once.
            kv.shape[0] <= blocks * rows,
            f"more tokens than the {blocks} blocks of {rows} rows hold, {_NAME} takes fewer",
        ),
        (
            latents.is_contiguous() and ropes.is_contiguous(),
            f"caches with gaps, {_NAME} needs them contiguous",
        ),
    )


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
    split: bool,
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
