"""Lightning attention of a few tokens on a CPU: a state is read once for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, narrow, widen
from numba import njit, prange

_DTYPES = (torch.float32, torch.bfloat16)
# Below this many values of states starting the thread pool costs more than the work itself.
_PARALLEL_FROM = 1 << 15


def supports(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, states: torch.Tensor
) -> bool:
    """float32 or bfloat16; float32 states without gaps inside."""
    return (
        query.dtype in _DTYPES
        and value.numel() > 0
        and states.dtype == torch.float32
        and states.numel() > 0
        and states[0].is_contiguous()
    )


def lightning_decode(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    query_start: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor | None,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.lightning_attention.lightning_decode`."""
    out = torch.empty(value.shape, dtype=value.dtype)
    requests = slots.shape[0]
    count = torch.ones(requests, dtype=torch.int64) if accepted is None else accepted.long()
    parallel = requests * states[0].numel() >= _PARALLEL_FROM
    kernel = _decode_parallel if parallel else _decode
    inside = kernel(
        as_numpy(query.contiguous()),
        as_numpy(key.contiguous()),
        as_numpy(value.contiguous()),
        np.exp(-as_numpy(slopes.contiguous())),
        as_numpy(query_start.long().contiguous()),
        as_numpy(states),
        as_numpy(slots.long().contiguous()),
        as_numpy(count.contiguous()),
        as_numpy(out),
    )
    if not inside:
        raise IndexError(
            f"a slot, a number of accepted tokens or a request's tokens lie outside "
            f"{states.shape[0]} states, {slots.shape[1]} slots a request or {len(query)} tokens"
        )
    return out


def _decode_body(query, key, value, decay, start, states, slots, accepted, out):  # type: ignore[no-untyped-def]
    tokens, heads, width = query.shape
    inner = value.shape[2]
    requests, columns = slots.shape
    bad = 0
    for r in range(requests):
        n = start[r + 1] - start[r]
        bad += start[r] < 0 or n < 0 or start[r + 1] > tokens or n > columns
        if slots[r, 0] > 0:
            bad += accepted[r] < 1 or accepted[r] > columns
            for j in range(columns):
                bad += slots[r, j] >= states.shape[0]
            if 1 <= accepted[r] <= columns:
                bad += slots[r, accepted[r] - 1] < 1
    if bad:
        return False
    for t in range(start[requests], tokens):
        for h in range(heads):
            for e in range(inner):
                out[t, h, e] = narrow(out, np.float32(0))
    for task in prange(requests * heads):
        r = task // heads
        h = task % heads
        begin, end = start[r], start[r + 1]
        if slots[r, 0] < 1:
            for t in range(begin, end):
                for e in range(inner):
                    out[t, h, e] = narrow(out, np.float32(0))
        elif end > begin:
            state = states[slots[r, accepted[r] - 1], h].copy()
            total = np.empty(inner, dtype=np.float32)
            row = np.empty(inner, dtype=np.float32)
            for t in range(begin, end):
                for e in range(inner):
                    total[e] = np.float32(0)
                    row[e] = widen(value[t, h, e])
                for d in range(width):
                    k, q = widen(key[t, h, d]), widen(query[t, h, d])
                    for e in range(inner):
                        new = state[d, e] * decay[h] + k * row[e]
                        state[d, e] = new
                        total[e] += q * new
                for e in range(inner):
                    out[t, h, e] = narrow(out, total[e])
                slot = slots[r, t - begin]
                if slot > 0:
                    for d in range(width):
                        for e in range(inner):
                            states[slot, h, d, e] = state[d, e]
    return True


_decode: Any = njit(fastmath=FASTMATH, error_model="numpy", cache=True)(_decode_body)
_decode_parallel: Any = njit(fastmath=FASTMATH, error_model="numpy", parallel=True, cache=True)(
    _decode_body
)
