"""Hyper-connections for a CPU.

Sinkhorn's iterations on tiny matrices are thousands of torch calls a step; here they are one
loop per token, fused with the collapse and the norm that follows.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange

from ascend_ops_core.cpu_apart import apart
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen
from ascend_ops_core.cpu_products import product, widen_rows
from ascend_ops_core.ops.hyper_connection.plan import HyperConnectionPlan

# From this many tokens on the thread pool pays for itself.
_PARALLEL_FROM = 4
# Up to so many tokens threads share the rows of the projection, with more of them the tokens.
_FEW_TOKENS = 16
_MIXES_PER_TASK = 4
_TOKENS_PER_TASK = 8


def supports(streams: torch.Tensor, *controls: torch.Tensor) -> bool:
    """Contiguous, non-empty float32 or bfloat16 streams, float32 weights and plan."""
    return (
        streams.dtype in (torch.float32, torch.bfloat16)
        and streams.is_contiguous()
        and streams.numel() > 0
        and all(control.dtype == torch.float32 for control in controls)
    )


def hc_pre(
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    sinkhorn_iters: int,
    hc_eps: float,
    norm_eps: float,
    norm_weight: torch.Tensor,
) -> tuple[torch.Tensor, HyperConnectionPlan]:
    """See :func:`ascend_ops_core.ops.hyper_connection.hc_pre`."""
    tokens, n, hidden = streams.shape
    out = streams.new_empty((tokens, hidden))
    post = torch.empty((tokens, n), dtype=torch.float32)
    comb = torch.empty((tokens, n, n), dtype=torch.float32)
    (pre_few if tokens <= _FEW_TOKENS else _pre_many)(
        as_numpy(streams),
        as_numpy(fn.contiguous()),
        as_numpy(scale),
        as_numpy(base),
        sinkhorn_iters,
        np.float32(hc_eps),
        np.float32(norm_eps),
        as_numpy(norm_weight),
        as_numpy(out),
        as_numpy(post),
        as_numpy(comb),
    )
    return out, HyperConnectionPlan(post, comb)


def hc_post(output: torch.Tensor, streams: torch.Tensor, plan: HyperConnectionPlan) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.hyper_connection.hc_post`."""
    new_streams = torch.empty_like(streams)
    spread(
        as_numpy(output.contiguous()),
        as_numpy(streams),
        as_numpy(plan.post),
        as_numpy(plan.comb),
        as_numpy(new_streams),
    )
    return new_streams


def hc_head(
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    hc_eps: float,
    norm_eps: float,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.hyper_connection.hc_head`; a few tokens."""
    out = streams.new_empty((streams.shape[0], streams.shape[2]))
    _head(
        as_numpy(streams),
        as_numpy(fn),
        as_numpy(scale),
        as_numpy(base),
        np.float32(hc_eps),
        np.float32(norm_eps),
        as_numpy(out),
    )
    return out


def supports_head(streams: torch.Tensor, fn: torch.Tensor, *controls: torch.Tensor) -> bool:
    """As :func:`supports`, a few tokens, and a contiguous projection."""
    return (
        streams.shape[0] <= _FEW_TOKENS and fn.is_contiguous() and supports(streams, fn, *controls)
    )


@njit(fastmath=FASTMATH, cache=True)
def _weights(mix, rms, scale, base, iters, eps, pre, post, comb):  # type: ignore[no-untyped-def]
    """Fill pre [n], post [n] and comb [n, n] of one token from its projected streams."""
    n = pre.shape[0]
    one = np.float32(1)
    for k in range(n):
        pre[k] = one / (one + np.exp(-(mix[k] * rms * scale[0] + base[k]))) + eps
        post[k] = np.float32(2) / (one + np.exp(-(mix[n + k] * rms * scale[1] + base[n + k])))
    for j in range(n):
        top = np.float32(-np.inf)
        for k in range(n):
            i = 2 * n + j * n + k
            comb[j, k] = mix[i] * rms * scale[2] + base[i]
            top = max(top, comb[j, k])
        total = np.float32(0)
        for k in range(n):
            comb[j, k] = np.exp(comb[j, k] - top)
            total += comb[j, k]
        for k in range(n):
            comb[j, k] = comb[j, k] / total + eps
    for it in range(iters):
        if it > 0:
            for j in range(n):
                total = eps
                for k in range(n):
                    total += comb[j, k]
                for k in range(n):
                    comb[j, k] /= total
        for k in range(n):
            total = eps
            for j in range(n):
                total += comb[j, k]
            for j in range(n):
                comb[j, k] /= total


@njit(fastmath=FASTMATH, cache=True)
def _collapse(  # type: ignore[no-untyped-def]
    streams, mix, scale, base, iters, hc_eps, norm_eps, gain, out, post, comb
):
    """One token: its plan, and its normed collapse in ``out [H]``."""
    n, hidden = streams.shape
    total = np.float32(0)
    for k in range(n):
        for d in range(hidden):
            v = widen(streams[k, d])
            total += v * v
    rms = np.float32(1) / np.sqrt(total / np.float32(n * hidden) + norm_eps)
    pre = np.empty(n, dtype=np.float32)
    _weights(mix, rms, scale, base, iters, hc_eps, pre, post, comb)
    row = np.zeros(hidden, dtype=np.float32)
    for k in range(n):
        for d in range(hidden):
            row[d] += pre[k] * widen(streams[k, d])
    total = np.float32(0)
    for d in range(hidden):
        # The model rounds the collapsed stream to its dtype before the norm.
        row[d] = widen(narrow(out, row[d]))
        total += row[d] * row[d]
    rms = np.float32(1) / np.sqrt(total / np.float32(hidden) + norm_eps)
    for d in range(hidden):
        out[d] = narrow(out, row[d] * rms * gain[d])


_collapse_token = apart(_collapse)


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def pre_few(  # type: ignore[no-untyped-def]
    streams, fn, scale, base, iters, hc_eps, norm_eps, gain, out, post, comb
):
    """Projection and collapse of a few tokens."""
    tokens, n, hidden = streams.shape
    wide = np.empty((tokens, n * hidden), dtype=np.float32)
    for t in range(tokens):
        for k in range(n):
            for d in range(hidden):
                wide[t, k * hidden + d] = widen(streams[t, k, d])
    rows = fn.shape[0]
    mixes = np.empty((tokens, rows), dtype=np.float32)
    for task in prange((rows + _MIXES_PER_TASK - 1) // _MIXES_PER_TASK):
        first = task * _MIXES_PER_TASK
        product(wide, 0, tokens, fn, first, min(rows, first + _MIXES_PER_TASK), mixes, first)
    for t in prange(tokens):
        _collapse_token(
            streams[t], mixes[t], scale, base, iters, hc_eps, norm_eps, gain,
            out[t], post[t], comb[t],
        )  # fmt: skip


@njit(fastmath=FASTMATH, cache=True)
def _head(streams, fn, scale, base, hc_eps, norm_eps, out):  # type: ignore[no-untyped-def]
    tokens, n, hidden = streams.shape
    wide = np.empty((1, n * hidden), dtype=np.float32)
    mix = np.empty((1, n), dtype=np.float32)
    for t in range(tokens):
        total = np.float32(0)
        for k in range(n):
            for d in range(hidden):
                v = widen(streams[t, k, d])
                wide[0, k * hidden + d] = v
                total += v * v
        rms = np.float32(1) / np.sqrt(total / np.float32(n * hidden) + norm_eps)
        product(wide, 0, 1, fn, 0, n, mix, 0)
        row = np.zeros(hidden, dtype=np.float32)
        for k in range(n):
            gate = np.float32(1) / (np.float32(1) + np.exp(-(mix[0, k] * rms * scale[0] + base[k])))
            for d in range(hidden):
                row[d] += (gate + hc_eps) * wide[0, k * hidden + d]
        for d in range(hidden):
            out[t, d] = narrow(out, row[d])


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _pre_many(  # type: ignore[no-untyped-def]
    streams, fn, scale, base, iters, hc_eps, norm_eps, gain, out, post, comb
):
    """As :func:`pre_few`; what a task widens stays in the second-level cache."""
    tokens, n, hidden = streams.shape
    rows = fn.shape[0]
    flat = streams.reshape((tokens, n * hidden))
    for task in prange((tokens + _TOKENS_PER_TASK - 1) // _TOKENS_PER_TASK):
        begin = task * _TOKENS_PER_TASK
        count = min(tokens - begin, _TOKENS_PER_TASK)
        wide = np.empty((count, n * hidden), dtype=np.float32)
        widen_rows(flat[begin : begin + count], wide)
        mixes = np.empty((count, rows), dtype=np.float32)
        product(wide, 0, count, fn, 0, rows, mixes, 0)
        for t in range(begin, begin + count):
            _collapse_token(
                streams[t], mixes[t - begin], scale, base, iters, hc_eps, norm_eps, gain,
                out[t], post[t], comb[t],
            )  # fmt: skip


@njit(fastmath=FASTMATH, cache=True)
def _spread_token(output, streams, post, comb, out):  # type: ignore[no-untyped-def]
    """Fill ``out [n, H]`` of one token."""
    n, hidden = streams.shape
    # Every stream is widened once, not once for each that it goes to.
    wide = np.empty((n + 1, hidden), dtype=np.float32)
    widen_rows(streams, wide)
    for d in range(hidden):
        wide[n, d] = widen(output[d])
    row = np.empty(hidden, dtype=np.float32)
    for k in range(n):
        for d in range(hidden):
            row[d] = post[k] * wide[n, d]
        for j in range(n):
            for d in range(hidden):
                row[d] += comb[j, k] * wide[j, d]
        for d in range(hidden):
            out[k, d] = narrow(out, row[d])


_spread_one = apart(_spread_token)


def _post_body(output, streams, post, comb, out):  # type: ignore[no-untyped-def]
    for t in prange(streams.shape[0]):
        _spread_one(output[t], streams[t], post[t], comb[t], out[t])


_post = njit(fastmath=FASTMATH, cache=True)(_post_body)
_post_parallel = njit(fastmath=FASTMATH, parallel=True, cache=True)(_post_body)


@njit(cache=True)
def spread(output, streams, post, comb, out):  # type: ignore[no-untyped-def]
    """Fill ``out [T, n, H]``, the new streams."""
    if streams.shape[0] >= _PARALLEL_FROM:
        _post_parallel(output, streams, post, comb, out)
    else:
        _post(output, streams, post, comb, out)
