"""The MLA cache's rows in Triton: one token is one row in and one row of each cache out."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.ops.rotary.kernels.tile import apart, together
from ascend_ops_core.tiling import next_power_of_two

# Compilers take tiles of two pairs better than of one.
_FEWEST_PAIRS = 2


@triton.jit
def _kv_rmsnorm_rope_cache_kernel(
    kv_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    latents_ptr,
    ropes_ptr,
    block_ptr,
    offset_ptr,
    kv_stride,
    latents_block,
    latents_row,
    ropes_block,
    ropes_row,
    eps,
    programs,
    RANK: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SPLIT: tl.constexpr,
    PADDED: tl.constexpr,
    HALF: tl.constexpr,
):
    d = tl.arange(0, PADDED)
    p = tl.arange(0, HALF)
    both = tl.arange(0, 2 * HALF)[None, None, :]
    weight = tl.load(weight_ptr + d, mask=d < RANK, other=0.0)
    latent_type = latents_ptr.dtype.element_ty
    rope_type = ropes_ptr.dtype.element_ty
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        block = tl.load(block_ptr + unit).to(tl.int32)
        offset = tl.load(offset_ptr + unit).to(tl.int32)
        if (block >= 0) & (offset >= 0):
            row = kv_ptr + as_int64(unit) * kv_stride
            x = tl.load(row + d, mask=d < RANK, other=0.0).to(tl.float32)
            scale = 1 / tl.sqrt(tl.sum(x * x, axis=0) / RANK + eps)
            to = latents_ptr + as_int64(block) * latents_block + as_int64(offset) * latents_row
            tl.store(to + d, (x * scale * weight).to(latent_type), mask=d < RANK)
            cos = tl.load(cos_ptr + as_int64(unit) * PAIRS + p, mask=p < PAIRS, other=0.0)
            sin = tl.load(sin_ptr + as_int64(unit) * PAIRS + p, mask=p < PAIRS, other=0.0)
            to = ropes_ptr + as_int64(block) * ropes_block + as_int64(offset) * ropes_row
            if INTERLEAVED:
                inside = both < 2 * PAIRS
                pairs = tl.load(row + RANK + both, mask=inside, other=0.0)
                first, second = apart(pairs, 1, 1, HALF)
                first, second = first.to(tl.float32), second.to(tl.float32)
                c, s = cos[None, None, :], sin[None, None, :]
                if SPLIT:
                    at = p[None, None, :]
                    turned = first * c - second * s
                    tl.store(to + at, turned.to(rope_type), mask=at < PAIRS)
                    turned = second * c + first * s
                    tl.store(to + PAIRS + at, turned.to(rope_type), mask=at < PAIRS)
                else:
                    turned = together(first * c - second * s, second * c + first * s, 1, 1, HALF)
                    tl.store(to + both, turned.to(rope_type), mask=inside)
            else:
                first = tl.load(row + RANK + p, mask=p < PAIRS, other=0.0).to(tl.float32)
                second = tl.load(row + RANK + PAIRS + p, mask=p < PAIRS, other=0.0)
                second = second.to(tl.float32)
                turned = first * cos - second * sin
                tl.store(to + p, turned.to(rope_type), mask=p < PAIRS)
                turned = second * cos + first * sin
                tl.store(to + PAIRS + p, turned.to(rope_type), mask=p < PAIRS)


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
    kv = kv if kv.stride(1) == 1 else kv.contiguous()
    rank, pairs = weight.shape[0], cos.shape[1]
    arguments = {
        "kv_ptr": kv,
        "weight_ptr": weight.contiguous(),
        "cos_ptr": cos.contiguous(),
        "sin_ptr": sin.contiguous(),
        "latents_ptr": latents,
        "ropes_ptr": ropes,
        "block_ptr": block.contiguous(),
        "offset_ptr": offset.contiguous(),
        "kv_stride": kv.stride(0),
        "latents_block": latents.stride(0),
        "latents_row": latents.stride(1),
        "ropes_block": ropes.stride(0),
        "ropes_row": ropes.stride(1),
        "eps": eps,
        "programs": kv.shape[0],
    }
    constants = {
        "RANK": rank,
        "PAIRS": pairs,
        "INTERLEAVED": interleaved,
        "SPLIT": split and interleaved,
        "PADDED": next_power_of_two(rank),
        "HALF": max(next_power_of_two(pairs), _FEWEST_PAIRS),
    }
    launch(_kv_rmsnorm_rope_cache_kernel, kv.shape[0], arguments, constants)
