"""Attention residuals in Triton: all sources of a token side by side, a chunk of channels a time.

Sources are read twice, for their scores and for the mixture; only the ``n`` that are there are
read at all.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, even_block, next_power_of_two


@triton.jit
def _running_sum(prefix, update, columns, inside, ADDED: tl.constexpr):
    """A chunk of the last source in its dtype."""
    x = tl.load(prefix + columns, mask=inside, other=0.0)
    if ADDED:
        y = tl.load(update + columns, mask=inside, other=0.0)
        x = (x.to(tl.float32) + y.to(tl.float32)).to(x.dtype)
    return x


@triton.jit
def _attn_res_kernel(
    prefix_ptr,
    update_ptr,
    blocks_ptr,
    weight_ptr,
    proj_ptr,
    out_ptr,
    total_ptr,
    block_stride,
    eps,
    programs,
    N: tl.constexpr,
    PADDED: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDED: tl.constexpr,
):
    j = tl.arange(0, PADDED)
    there = j < N
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row = as_int64(unit) * HIDDEN
        sources = blocks_ptr + row + j.to(tl.int64)[:, None] * block_stride
        squares = tl.zeros((PADDED,), tl.float32)
        scores = tl.zeros((PADDED,), tl.float32)
        last_squares = tl.zeros((BLOCK,), tl.float32)
        last_scores = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, HIDDEN, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            inside = columns < HIDDEN
            mask = there[:, None] & inside[None, :]
            weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
            weight *= tl.load(proj_ptr + columns, mask=inside, other=0.0).to(tl.float32)
            s = tl.load(sources + columns[None, :], mask=mask, other=0.0).to(tl.float32)
            squares += tl.sum(s * s, axis=1)
            scores += tl.sum(s * weight[None, :], axis=1)
            total = _running_sum(prefix_ptr + row, update_ptr + row, columns, inside, ADDED)
            if ADDED:
                tl.store(total_ptr + row + columns, total, mask=inside)
            s0 = total.to(tl.float32)
            last_squares += s0 * s0
            last_scores += s0 * weight
        score = scores / tl.sqrt(squares / HIDDEN + eps)
        score = tl.where(there, score, -1e30)
        last = tl.sum(last_scores, axis=0) / tl.sqrt(tl.sum(last_squares, axis=0) / HIDDEN + eps)
        top = tl.max(score, axis=0)
        top = tl.where(last > top, last, top)
        share = tl.exp(score - top)
        last_share = tl.exp(last - top)
        divisor = tl.sum(share, axis=0) + last_share
        share = share / divisor
        last_share = last_share / divisor
        for start in range(0, HIDDEN, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            inside = columns < HIDDEN
            mask = there[:, None] & inside[None, :]
            s = tl.load(sources + columns[None, :], mask=mask, other=0.0).to(tl.float32)
            total = _running_sum(prefix_ptr + row, update_ptr + row, columns, inside, ADDED)
            y = tl.sum(s * share[:, None], axis=0) + total.to(tl.float32) * last_share
            tl.store(out_ptr + row + columns, y.to(out_ptr.dtype.element_ty), mask=inside)


def attn_res(
    prefix: torch.Tensor,
    blocks: torch.Tensor,
    norm_weight: torch.Tensor,
    proj: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.attention_residual.attn_res`."""
    return _mixed(prefix.contiguous(), None, blocks, norm_weight, proj, eps)[0]


def add_attn_res(
    prefix: torch.Tensor,
    update: torch.Tensor,
    blocks: torch.Tensor,
    norm_weight: torch.Tensor,
    proj: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.attention_residual.add_attn_res`."""
    return _mixed(prefix.contiguous(), update.contiguous(), blocks, norm_weight, proj, eps)


def _mixed(
    prefix: torch.Tensor,
    update: torch.Tensor | None,
    blocks: torch.Tensor,
    norm_weight: torch.Tensor,
    proj: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    (tokens, hidden), n = prefix.shape, blocks.shape[0]
    if n == 0:
        total = prefix if update is None else prefix + update
        return total.clone(), total
    blocks, size = blocks.contiguous(), prefix.element_size()
    out = torch.empty(prefix.shape, dtype=prefix.dtype, device=prefix.device)
    total = out if update is None else torch.empty_like(out)
    # A5's compiler takes no tile of one strided row.
    padded = max(next_power_of_two(n), 2)
    block = block_of(
        current_facts(),
        streamed=size * (padded + 4),
        local=4 * (6 * padded + 8),
        maximum=next_power_of_two(hidden),
    )
    arguments = {
        "prefix_ptr": prefix,
        "update_ptr": prefix if update is None else update,
        "blocks_ptr": blocks,
        "weight_ptr": norm_weight.contiguous(),
        "proj_ptr": proj.contiguous(),
        "out_ptr": out,
        "total_ptr": total,
        "block_stride": tokens * hidden,
        "eps": eps,
        "programs": tokens,
    }
    constants = {
        "N": n,
        "PADDED": padded,
        "HIDDEN": hidden,
        "BLOCK": even_block(hidden, block),
        "ADDED": update is not None,
    }
    launch(_attn_res_kernel, tokens, arguments, constants)
    return out, total
