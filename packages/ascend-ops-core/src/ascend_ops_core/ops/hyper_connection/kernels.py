"""Hyper-connections in Triton.

The projection of the streams is torch's product. Weights are computed with the tokens along the
last axis, so that sums over the few streams add whole vectors.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from ascend_ops_core.devices import DeviceFacts, current_facts
from ascend_ops_core.kernels import as_int64, sigmoid_divisor
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import SHARE, block_of, next_power_of_two, tile_bytes


@triton.jit
def _doubly_stochastic(logits, valid, eps, ITERS: tl.constexpr):
    """Softmax over axis 1 of ``[n, n, tokens]``, then Sinkhorn; what is not valid stays 0."""
    logits = tl.where(valid, logits, -1e30)
    y = tl.exp(logits - tl.max(logits, axis=1)[:, None, :])
    y = tl.where(valid, y / tl.sum(y, axis=1)[:, None, :] + eps, 0.0)
    y = y / _divisor(tl.sum(y, axis=0) + eps)[None, :, :]
    for _ in range(1, ITERS):
        y = y / _divisor(tl.sum(y, axis=1) + eps)[:, None, :]
        y = y / _divisor(tl.sum(y, axis=0) + eps)[None, :, :]
    return y


@triton.jit
def _divisor(total):
    # Padding sums to 0.
    return tl.where(total > 0, total, 1.0)


@triton.jit
def _sinkhorn_kernel(
    logits_ptr,
    out_ptr,
    tokens,
    eps,
    programs,
    N: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    ITERS: tl.constexpr,
):
    j = tl.arange(0, PADDED)[:, None, None]
    k = tl.arange(0, PADDED)[None, :, None]
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * BLOCK
        t = tl.arange(0, BLOCK)[None, None, :]
        valid = (j < N) & (k < N) & (t < (tokens - first).to(tl.int32))
        here = first + (j * N + k) * tokens + t
        logits = tl.load(logits_ptr + here, mask=valid, other=0.0)
        y = _doubly_stochastic(logits, valid, eps, ITERS)
        tl.store(out_ptr + here, y, mask=valid)


@triton.jit
def _inverse_rms_kernel(x_ptr, out_ptr, eps, programs, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row = x_ptr + as_int64(unit) * WIDTH
        squares = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, WIDTH, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            x = tl.load(row + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
            squares += x * x
        tl.store(out_ptr + unit, 1.0 / tl.sqrt(tl.sum(squares, axis=0) / WIDTH + eps))


@triton.jit
def _plan_kernel(
    mix_ptr,
    rms_ptr,
    scale_ptr,
    base_ptr,
    pre_ptr,
    post_ptr,
    comb_ptr,
    tokens,
    eps,
    programs,
    N: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    ITERS: tl.constexpr,
):
    rows = tl.arange(0, PADDED)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * BLOCK
        t = tl.arange(0, BLOCK)
        here = t < (tokens - first).to(tl.int32)
        rms = tl.load(rms_ptr + first + t, mask=here, other=0.0)
        inside = (rows < N)[:, None] & here[None, :]
        out = first + rows[:, None] * tokens + t[None, :]
        mix = tl.load(mix_ptr + out, mask=inside, other=0.0)
        base = tl.load(base_ptr + rows, mask=rows < N, other=0.0)
        z = mix * rms[None, :] * tl.load(scale_ptr) + base[:, None]
        tl.store(pre_ptr + out, 1.0 / sigmoid_divisor(z) + eps, mask=inside)
        if ITERS > 0:
            mix = tl.load(mix_ptr + N * tokens + out, mask=inside, other=0.0)
            base = tl.load(base_ptr + N + rows, mask=rows < N, other=0.0)
            z = mix * rms[None, :] * tl.load(scale_ptr + 1) + base[:, None]
            tl.store(post_ptr + out, 2.0 / sigmoid_divisor(z), mask=inside)
            j, k = rows[:, None, None], rows[None, :, None]
            valid = (j < N) & (k < N) & here[None, None, :]
            at = first + (j * N + k) * tokens + t[None, None, :]
            mix3 = tl.load(mix_ptr + 2 * N * tokens + at, mask=valid, other=0.0)
            square = (rows < N)[:, None] & (rows < N)[None, :]
            base2 = tl.load(
                base_ptr + 2 * N + rows[:, None] * N + rows[None, :], mask=square, other=0.0
            )
            z3 = mix3 * rms[None, None, :] * tl.load(scale_ptr + 2) + base2[:, :, None]
            comb = _doubly_stochastic(z3, valid, eps, ITERS)
            tl.store(comb_ptr + at, comb, mask=valid)


@triton.jit
def _collapsed(row, weights, columns, inside, N: tl.constexpr, HIDDEN: tl.constexpr):
    """The weighted sum of a token's streams, rounded to their dtype, in float32."""
    total = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32) * tl.load(weights)
    for k in tl.static_range(1, N):
        x = tl.load(row + k * HIDDEN + columns, mask=inside, other=0.0).to(tl.float32)
        total += x * tl.load(weights + k)
    return total.to(row.dtype.element_ty).to(tl.float32)


@triton.jit
def _collapse_kernel(
    streams_ptr,
    pre_ptr,
    weight_ptr,
    out_ptr,
    eps,
    programs,
    N: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    NORMED: tl.constexpr,
    WHOLE: tl.constexpr,
):
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row = streams_ptr + as_int64(unit) * (N * HIDDEN)
        weights = pre_ptr + unit * N
        out = out_ptr + as_int64(unit) * HIDDEN
        if WHOLE:
            columns = tl.arange(0, BLOCK)
            inside = columns < HIDDEN
            y = _collapsed(row, weights, columns, inside, N, HIDDEN)
            if NORMED:
                y = y * (1.0 / tl.sqrt(tl.sum(y * y, axis=0) / HIDDEN + eps))
                y = y * tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
            tl.store(out + columns, y.to(out_ptr.dtype.element_ty), mask=inside)
        else:
            scale = 1.0
            if NORMED:
                squares = tl.zeros((BLOCK,), tl.float32)
                for start in range(0, HIDDEN, BLOCK):
                    columns = start + tl.arange(0, BLOCK)
                    y = _collapsed(row, weights, columns, columns < HIDDEN, N, HIDDEN)
                    squares += y * y
                scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / HIDDEN + eps)
            for start in range(0, HIDDEN, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                inside = columns < HIDDEN
                y = _collapsed(row, weights, columns, inside, N, HIDDEN)
                if NORMED:
                    gain = tl.load(weight_ptr + columns, mask=inside, other=0.0)
                    y = y * scale * gain.to(tl.float32)
                tl.store(out + columns, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _spread_kernel(
    output_ptr,
    streams_ptr,
    post_ptr,
    comb_ptr,
    out_ptr,
    programs,
    N: tl.constexpr,
    PADDED: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    k = tl.arange(0, PADDED)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        token = as_int64(unit // CHUNKS)
        columns = (unit % CHUNKS) * BLOCK + tl.arange(0, BLOCK)
        inside = columns < HIDDEN
        output = tl.load(output_ptr + token * HIDDEN + columns, mask=inside, other=0.0)
        post = tl.load(post_ptr + token * N + k, mask=k < N, other=0.0)
        total = post[:, None] * output.to(tl.float32)[None, :]
        for j in tl.static_range(N):
            row = streams_ptr + token * (N * HIDDEN) + j * HIDDEN
            x = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32)
            share = tl.load(comb_ptr + token * (N * N) + j * N + k, mask=k < N, other=0.0)
            total += share[:, None] * x[None, :]
        out = out_ptr + token * (N * HIDDEN) + k[:, None] * HIDDEN + columns[None, :]
        mask = (k < N)[:, None] & inside[None, :]
        tl.store(out, total.to(out_ptr.dtype.element_ty), mask=mask)


def sinkhorn(logits: torch.Tensor, iters: int, eps: float) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.hyper_connection.sinkhorn`."""
    n = logits.shape[-1]
    columns = logits.reshape(-1, n * n).t().contiguous()
    out = torch.empty_like(columns)
    tokens = columns.shape[1]
    block = _tokens_a_block(current_facts(), n, tokens)
    programs = -(-tokens // block)
    arguments = {
        "logits_ptr": columns,
        "out_ptr": out,
        "tokens": tokens,
        "eps": eps,
        "programs": programs,
    }
    constants = {"N": n, "PADDED": next_power_of_two(n), "BLOCK": block, "ITERS": iters}
    launch(_sinkhorn_kernel, programs, arguments, constants)
    return out.t().reshape(logits.shape).contiguous()


def hc_pre(
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    sinkhorn_iters: int,
    hc_eps: float,
    norm_eps: float,
    norm_weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.hyper_connection.hc_pre`."""
    streams = streams.contiguous()
    tokens, n, _ = streams.shape
    pre, post, comb = _weights(streams, fn, scale, base, sinkhorn_iters, hc_eps, norm_eps)
    collapsed = _collapse(streams, pre, norm_weight, norm_eps)
    return collapsed, post, comb.view(tokens, n, n)


def hc_head(
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    hc_eps: float,
    norm_eps: float,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.hyper_connection.hc_head`."""
    streams = streams.contiguous()
    pre, _, _ = _weights(streams, fn, scale, base, 0, hc_eps, norm_eps)
    return _collapse(streams, pre, None, norm_eps)


def hc_post(
    output: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.hyper_connection.hc_post`."""
    tokens, n, hidden = streams.shape
    out = torch.empty(streams.shape, dtype=streams.dtype, device=streams.device)
    padded, size = next_power_of_two(n), streams.element_size()
    block = block_of(
        current_facts(),
        streamed=size * (padded + 2),
        local=4 * (2 * padded + 2),
        maximum=next_power_of_two(hidden),
    )
    chunks = -(-hidden // block)
    arguments = {
        "output_ptr": output.contiguous(),
        "streams_ptr": streams.contiguous(),
        "post_ptr": post.contiguous(),
        "comb_ptr": comb.contiguous(),
        "out_ptr": out,
        "programs": tokens * chunks,
    }
    constants = {"N": n, "PADDED": padded, "HIDDEN": hidden, "BLOCK": block, "CHUNKS": chunks}
    launch(_spread_kernel, tokens * chunks, arguments, constants)
    return out


def _tokens_a_block(facts: DeviceFacts, n: int, tokens: int) -> int:
    entries = 4 * next_power_of_two(n) ** 2
    return block_of(
        facts,
        streamed=2 * entries,
        local=5 * entries,
        minimum=8,
        maximum=next_power_of_two(tokens),
    )


def _weights(
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    iters: int,
    hc_eps: float,
    norm_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights pre ``[T, n]``, post ``[T, n]`` and comb ``[T, n * n]``; only pre without iters."""
    tokens, n, hidden = streams.shape
    facts, width, device = current_facts(), n * hidden, streams.device
    mixes = F.linear(streams.flatten(1).float(), fn).t().contiguous()
    rms = torch.empty(tokens, dtype=torch.float32, device=device)
    streamed = streams.element_size()
    block = block_of(facts, streamed=streamed, local=12, maximum=next_power_of_two(width))
    arguments: dict[str, Any] = {"x_ptr": streams, "out_ptr": rms, "eps": norm_eps}
    arguments["programs"] = tokens
    launch(_inverse_rms_kernel, tokens, arguments, {"WIDTH": width, "BLOCK": block})
    pre = torch.empty((n, tokens), dtype=torch.float32, device=device)
    post = torch.empty((n if iters else 0, tokens), dtype=torch.float32, device=device)
    comb = torch.empty((n * n if iters else 0, tokens), dtype=torch.float32, device=device)
    block = _tokens_a_block(facts, n, tokens)
    programs = -(-tokens // block)
    arguments = {
        "mix_ptr": mixes,
        "rms_ptr": rms,
        "scale_ptr": scale,
        "base_ptr": base,
        "pre_ptr": pre,
        "post_ptr": post,
        "comb_ptr": comb,
        "tokens": tokens,
        "eps": hc_eps,
        "programs": programs,
    }
    constants = {"N": n, "PADDED": next_power_of_two(n), "BLOCK": block, "ITERS": iters}
    launch(_plan_kernel, programs, arguments, constants)
    return pre.t().contiguous(), post.t().contiguous(), comb.t().contiguous()


def _collapse(
    streams: torch.Tensor, pre: torch.Tensor, norm_weight: torch.Tensor | None, eps: float
) -> torch.Tensor:
    tokens, n, hidden = streams.shape
    out = torch.empty((tokens, hidden), dtype=streams.dtype, device=streams.device)
    facts, padded = current_facts(), next_power_of_two(hidden)
    sizes = {"streamed": 2 * streams.element_size(), "local": 16}
    whole = tile_bytes(padded, **sizes) <= facts.ub_bytes * SHARE
    block = padded if whole else block_of(facts, **sizes, maximum=padded)
    arguments = {
        "streams_ptr": streams,
        "pre_ptr": pre,
        "weight_ptr": pre if norm_weight is None else norm_weight,
        "out_ptr": out,
        "eps": eps,
        "programs": tokens,
    }
    constants = {
        "N": n,
        "HIDDEN": hidden,
        "BLOCK": block,
        "NORMED": norm_weight is not None,
        "WHOLE": whole,
    }
    launch(_collapse_kernel, tokens, arguments, constants)
    return out
