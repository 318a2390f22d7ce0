"""Hyper-connections for a CPU.

Sinkhorn's iterations on tiny matrices are thousands of torch calls a step; here they are one
loop per token, fused with the collapse and the norm that follows.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange

from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, bf16_to_f32, f32_to_bf16
from ascend_ops_core.ops.hyper_connection.plan import HyperConnectionPlan
from ascend_ops_core.ops.linear import linear

# From this many tokens on the thread pool pays for itself.
_PARALLEL_FROM = 4


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
    mixes = linear(streams.view(tokens, n * hidden).float(), fn)
    out = streams.new_empty((tokens, hidden))
    post = torch.empty((tokens, n), dtype=torch.float32)
    comb = torch.empty((tokens, n, n), dtype=torch.float32)
    bf16 = streams.dtype == torch.bfloat16
    if tokens >= _PARALLEL_FROM:
        kernel = _pre_bf16_parallel if bf16 else _pre_f32_parallel
    else:
        kernel = _pre_bf16 if bf16 else _pre_f32
    kernel(
        as_numpy(streams),
        as_numpy(mixes),
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
    bf16 = streams.dtype == torch.bfloat16
    if streams.shape[0] >= _PARALLEL_FROM:
        kernel = _post_bf16_parallel if bf16 else _post_f32_parallel
    else:
        kernel = _post_bf16 if bf16 else _post_f32
    kernel(
        as_numpy(output.contiguous()),
        as_numpy(streams),
        as_numpy(plan.post),
        as_numpy(plan.comb),
        as_numpy(new_streams),
    )
    return new_streams


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


def _pre_f32_body(  # type: ignore[no-untyped-def]
    streams, mixes, scale, base, iters, hc_eps, norm_eps, gain, out, post, comb
):
    tokens, n, hidden = streams.shape
    for t in prange(tokens):
        total = np.float32(0)
        for k in range(n):
            for d in range(hidden):
                total += streams[t, k, d] * streams[t, k, d]
        rms = np.float32(1) / np.sqrt(total / np.float32(n * hidden) + norm_eps)
        pre = np.empty(n, dtype=np.float32)
        _weights(mixes[t], rms, scale, base, iters, hc_eps, pre, post[t], comb[t])
        for d in range(hidden):
            out[t, d] = pre[0] * streams[t, 0, d]
        for k in range(1, n):
            for d in range(hidden):
                out[t, d] += pre[k] * streams[t, k, d]
        total = np.float32(0)
        for d in range(hidden):
            total += out[t, d] * out[t, d]
        rms = np.float32(1) / np.sqrt(total / np.float32(hidden) + norm_eps)
        for d in range(hidden):
            out[t, d] = out[t, d] * rms * gain[d]


def _pre_bf16_body(  # type: ignore[no-untyped-def]
    streams, mixes, scale, base, iters, hc_eps, norm_eps, gain, out, post, comb
):
    tokens, n, hidden = streams.shape
    for t in prange(tokens):
        total = np.float32(0)
        for k in range(n):
            for d in range(hidden):
                v = bf16_to_f32(streams[t, k, d])
                total += v * v
        rms = np.float32(1) / np.sqrt(total / np.float32(n * hidden) + norm_eps)
        pre = np.empty(n, dtype=np.float32)
        _weights(mixes[t], rms, scale, base, iters, hc_eps, pre, post[t], comb[t])
        row = np.zeros(hidden, dtype=np.float32)
        for k in range(n):
            for d in range(hidden):
                row[d] += pre[k] * bf16_to_f32(streams[t, k, d])
        total = np.float32(0)
        for d in range(hidden):
            # The model rounds the collapsed stream to its dtype before the norm.
            row[d] = bf16_to_f32(f32_to_bf16(row[d]))
            total += row[d] * row[d]
        rms = np.float32(1) / np.sqrt(total / np.float32(hidden) + norm_eps)
        for d in range(hidden):
            out[t, d] = f32_to_bf16(row[d] * rms * gain[d])


def _post_f32_body(output, streams, post, comb, out):  # type: ignore[no-untyped-def]
    tokens, n, hidden = streams.shape
    for t in prange(tokens):
        for k in range(n):
            for d in range(hidden):
                out[t, k, d] = post[t, k] * output[t, d]
            for j in range(n):
                for d in range(hidden):
                    out[t, k, d] += comb[t, j, k] * streams[t, j, d]


def _post_bf16_body(output, streams, post, comb, out):  # type: ignore[no-untyped-def]
    tokens, n, hidden = streams.shape
    for t in prange(tokens):
        row = np.empty(hidden, dtype=np.float32)
        for k in range(n):
            for d in range(hidden):
                row[d] = post[t, k] * bf16_to_f32(output[t, d])
            for j in range(n):
                for d in range(hidden):
                    row[d] += comb[t, j, k] * bf16_to_f32(streams[t, j, d])
            for d in range(hidden):
                out[t, k, d] = f32_to_bf16(row[d])


_pre_f32 = njit(fastmath=FASTMATH, cache=True)(_pre_f32_body)
_pre_f32_parallel = njit(fastmath=FASTMATH, parallel=True, cache=True)(_pre_f32_body)
_pre_bf16 = njit(fastmath=FASTMATH, cache=True)(_pre_bf16_body)
_pre_bf16_parallel = njit(fastmath=FASTMATH, parallel=True, cache=True)(_pre_bf16_body)
_post_f32 = njit(fastmath=FASTMATH, cache=True)(_post_f32_body)
_post_f32_parallel = njit(fastmath=FASTMATH, parallel=True, cache=True)(_post_f32_body)
_post_bf16 = njit(fastmath=FASTMATH, cache=True)(_post_bf16_body)
_post_bf16_parallel = njit(fastmath=FASTMATH, parallel=True, cache=True)(_post_bf16_body)
