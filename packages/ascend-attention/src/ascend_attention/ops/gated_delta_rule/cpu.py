"""The gated delta rule for a CPU with few tokens: rows of a state go by one after the other.

A token changes a row of a head's state by that row alone, so each row is read once, meets all
tokens of its request, and is written once for every slot that it is left in.
"""

from __future__ import annotations

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, exp_f32, narrow, widen
from numba import njit, prange

_DTYPES = (torch.float32, torch.bfloat16)
# Tasks that a step is cut into at least, so that one request with few heads keeps threads busy.
_LEAST_TASKS = 8
_EPSILON = np.float32(1e-6)
_NONE = np.zeros(0, dtype=np.int32)


def supports(query: torch.Tensor, beta: torch.Tensor, state: torch.Tensor) -> bool:
    """Float32 or bfloat16; some tokens and a state that has values."""
    return (
        all(x.dtype in _DTYPES for x in (query, beta, state))
        and query.numel() > 0
        and state.numel() > 0
    )


def recurrent_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state_indices: torch.Tensor,
    accepted: torch.Tensor | None,
    scale: float,
    normalize: bool,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.gated_delta_rule.recurrent_gated_delta_rule`."""
    out = torch.zeros(value.shape, dtype=value.dtype)
    slots = state.shape[0]
    # Slots may have any stride, and numba vectorises over flat memory alone.
    flat = state.as_strided(((slots - 1) * state.stride(0) + state[0].numel(),), (1,))
    problem = _run(
        as_numpy(query.contiguous()),
        as_numpy(key.contiguous()),
        as_numpy(value.contiguous()),
        as_numpy(decay.contiguous().view(decay.shape[0], decay.shape[1], -1)),
        as_numpy(beta.contiguous()),
        as_numpy(flat),
        state.stride(0),
        slots,
        as_numpy(cu_seqlens.contiguous()),
        as_numpy(state_indices.contiguous()),
        _NONE if accepted is None else as_numpy(accepted.contiguous()),
        np.float32(scale),
        normalize,
        as_numpy(out),
    )
    if problem:
        raise IndexError(
            f"a request names a slot outside the {slots} of the state, tokens outside the "
            f"{query.shape[0]} of the step, or accepts tokens outside the {state_indices.shape[1]} "
            "slots that it has"
        )
    return out


@njit(fastmath=FASTMATH, parallel=True, cache=True)
def _run(  # type: ignore[no-untyped-def]
    query, key, value, decay, beta, state, over_slots, slots, bounds, indices, accepted, scale,
    normalize, out,
):  # fmt: skip
    tokens, groups, width = query.shape
    heads, height = value.shape[1], value.shape[2]
    requests, places = indices.shape
    for r in range(requests):
        if bounds[r] < 0 or bounds[r + 1] < bounds[r] or bounds[r + 1] > tokens:
            return True
        if len(accepted) and (accepted[r] < 1 or accepted[r] > places):
            return True
        for w in range(places):
            if indices[r, w] >= slots:
                return True
    channels = decay.shape[2] > 1
    parts = max(1, min(height, _LEAST_TASKS // max(requests * heads, 1)))
    for task in prange(requests * heads * parts):
        pair = task // parts
        part = task - pair * parts
        r = pair // heads
        h = pair - r * heads
        start = indices[r, accepted[r] - 1 if len(accepted) else 0]
        begin, count = bounds[r], bounds[r + 1] - bounds[r]
        if start <= 0 or count == 0:
            continue
        rows_q = np.empty((count, width), dtype=np.float32)
        rows_k = np.empty((count, width), dtype=np.float32)
        factors = np.empty((count, width), dtype=np.float32)
        g = h // (heads // groups)
        for j in range(count):
            _fill(query[begin + j, g], scale, normalize, rows_q[j])
            _fill(key[begin + j, g], np.float32(1), normalize, rows_k[j])
            if channels:
                for d in range(width):
                    factors[j, d] = exp_f32(decay[begin + j, h, d])
            else:
                factor = exp_f32(decay[begin + j, h, 0])
                for d in range(width):
                    factors[j, d] = factor
        row = np.empty(width, dtype=np.float32)
        for v in range(part * height // parts, (part + 1) * height // parts):
            inside = (h * height + v) * width
            at = np.int64(start) * over_slots + inside
            for d in range(width):
                row[d] = widen(state[at + d])
            for j in range(count):
                t = begin + j
                said = _predicted(row, factors[j], rows_k[j])
                change = widen(beta[t, h]) * (widen(value[t, h, v]) - said)
                out[t, h, v] = narrow(out, _changed(row, change, rows_k[j], rows_q[j]))
                slot = indices[r, min(j, places - 1)]
                if slot > 0 and (j < places - 1 or j == count - 1):
                    to = np.int64(slot) * over_slots + inside
                    for d in range(width):
                        state[to + d] = narrow(state, row[d])
    return False


@njit(fastmath=FASTMATH, cache=True)
def _fill(given, scale, normalize, row):  # type: ignore[no-untyped-def]
    """One query or key, widened, normalised if asked for, times a factor."""
    squares = np.float32(0)
    for d in range(row.shape[0]):
        x = widen(given[d])
        squares += x * x
        row[d] = x
    factor = scale / np.sqrt(squares + _EPSILON) if normalize else scale
    for d in range(row.shape[0]):
        row[d] *= factor


@njit(fastmath=FASTMATH, cache=True)
def _predicted(row, factors, key):  # type: ignore[no-untyped-def]
    """Decay a row of the state, and return what it says about the key."""
    said = np.float32(0)
    for d in range(row.shape[0]):
        x = row[d] * factors[d]
        row[d] = x
        said += x * key[d]
    return said


@njit(fastmath=FASTMATH, cache=True)
def _changed(row, change, key, query):  # type: ignore[no-untyped-def]
    """Correct a row of the state, and return what the query reads."""
    read = np.float32(0)
    for d in range(row.shape[0]):
        x = row[d] + change * key[d]
        row[d] = x
        read += x * query[d]
    return read
