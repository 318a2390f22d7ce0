"""Attention with a bias in Triton: tokens of one head over all keys, a tile of biases for each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch

from ascend_attention.ops.encoder_attention.kernels import rows_of_head
from ascend_attention.ops.paged_attention.kernels import LOWEST
from ascend_attention.ops.paged_attention.plan import tile_of


@triton.jit
def _relative_attention_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    bias_ptr,
    out_ptr,
    scale,
    tokens,
    keys,
    query_batch,
    query_token,
    query_head,
    key_batch,
    key_token,
    key_head,
    value_batch,
    value_token,
    value_head,
    bias_batch,
    bias_head,
    bias_token,
    programs,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    TAKEN: tl.constexpr,
    ROWS: tl.constexpr,
):
    q = tl.arange(0, TAKEN)
    r = tl.arange(0, ROWS)
    d = tl.arange(0, PADDED)
    tiles = (tokens + TAKEN - 1) // TAKEN
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        tile = unit // HEADS
        head = unit - tile * HEADS
        batch = tile // tiles
        token = (tile - batch * tiles) * TAKEN
        real = q < tokens - token
        query = rows_of_head(
            query_ptr + as_int64(batch) * query_batch, token, tokens, head, query_token,
            query_head, WIDTH, PADDED, TAKEN,
        )  # fmt: skip
        peak = tl.full((TAKEN,), LOWEST, tl.float32)
        total = tl.zeros((TAKEN,), tl.float32)
        summed = tl.zeros((TAKEN, PADDED), tl.float32)
        biases = bias_ptr + as_int64(batch) * bias_batch + as_int64(head) * bias_head
        biases += as_int64(token) * bias_token
        for at in range(0, keys, ROWS):
            key = rows_of_head(
                key_ptr + as_int64(batch) * key_batch, at, keys, head, key_token, key_head, WIDTH,
                PADDED, ROWS,
            )  # fmt: skip
            value = rows_of_head(
                value_ptr + as_int64(batch) * value_batch, at, keys, head, value_token, value_head,
                WIDTH, PADDED, ROWS,
            )  # fmt: skip
            there = (r < keys - at)[None, :]
            bias = tl.load(
                biases + at + q[:, None] * bias_token + r[None, :],
                mask=real[:, None] & there,
                other=0.0,
            ).to(tl.float32)
            logits = tl.dot(query, tl.trans(key), input_precision="ieee") * scale + bias
            logits += tl.where(there, 0.0, float("-inf"))
            top = tl.max(logits, axis=1)
            higher = tl.where(top > peak, top, peak)
            weights = tl.exp(logits - higher[:, None])
            factor = tl.exp(peak - higher)
            total = total * factor + tl.sum(weights, axis=1)
            product = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
            summed = summed * factor[:, None] + product
            peak = higher
        result = summed * (1.0 / tl.where(total > 0.0, total, 1.0))[:, None]
        row = (as_int64(batch) * tokens + token) * HEADS + head
        to = out_ptr + row * WIDTH + q[:, None] * (HEADS * WIDTH) + d[None, :]
        mask = real[:, None] & (d < WIDTH)[None, :]
        tl.store(to, result.to(out_ptr.dtype.element_ty), mask=mask)


def relative_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scale: float
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.relative_attention.relative_attention`."""
    batch, tokens, heads, width = query.shape
    cut = tile_of(current_facts(), width, tokens, query.element_size())
    programs = batch * -(-tokens // cut.taken) * heads
    bias = bias if bias.stride(3) == 1 else bias.contiguous()
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    arguments = {
        "query_ptr": query,
        "key_ptr": key,
        "value_ptr": value,
        "bias_ptr": bias,
        "out_ptr": out,
        "scale": float(scale),
        "tokens": tokens,
        "keys": key.shape[1],
        "query_batch": query.stride(0),
        "query_token": query.stride(1),
        "query_head": query.stride(2),
        "key_batch": key.stride(0),
        "key_token": key.stride(1),
        "key_head": key.stride(2),
        "value_batch": value.stride(0),
        "value_token": value.stride(1),
        "value_head": value.stride(2),
        "bias_batch": bias.stride(0) if bias.shape[0] > 1 else 0,
        "bias_head": bias.stride(1),
        "bias_token": bias.stride(2),
        "programs": programs,
    }
    constants = {
        "HEADS": heads,
        "WIDTH": width,
        "PADDED": cut.padded,
        "TAKEN": cut.taken,
        "ROWS": cut.rows,
    }
    launch(_relative_attention_kernel, programs, arguments, constants, cube=True)
    return out
