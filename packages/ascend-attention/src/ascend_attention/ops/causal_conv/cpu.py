"""The causal convolution on a CPU: one pass over the tokens, history and state included."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ascend_ops_core.cpu_numeric import FASTMATH, as_numpy, exp_f32, narrow, widen
from numba import njit, prange

_DTYPES = (torch.float32, torch.bfloat16)
# Below this many products starting the thread pool costs more than the work itself.
_PARALLEL_FROM = 1 << 16
_TOKENS = 32
_NO_BIAS: dict[int, torch.Tensor] = {}


def supports(x: torch.Tensor, states: torch.Tensor | None) -> bool:
    """Rows without gaps inside, float32 or bfloat16; states likewise and of the same dtype."""
    return (
        x.dtype in _DTYPES
        and x.numel() > 0
        and x.stride(1) == 1
        and (
            states is None
            or (states.dtype == x.dtype and states.numel() > 0 and states.stride(2) == 1)
        )
    )


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    query_start: torch.Tensor,
    bias: torch.Tensor | None,
    states: torch.Tensor | None,
    slots: torch.Tensor | None,
    has_state: torch.Tensor | None,
    accepted: torch.Tensor | None,
    most_tokens: int,
    silu: bool,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.causal_conv.causal_conv1d`."""
    tokens, channels = x.shape
    width = weight.shape[0]
    requests = query_start.shape[0] - 1
    out = torch.empty((tokens, channels), dtype=x.dtype)
    start = query_start.long()
    if states is None:
        slot = torch.ones(requests, dtype=torch.int64)
        has = torch.zeros(requests, dtype=torch.bool)
        memory, layout = x.new_empty(1), (0, 0, 0, 0)
    else:
        assert slots is not None
        slot = slots.long()
        has = torch.ones(requests, dtype=torch.bool) if has_state is None else has_state
        memory = _flat(states)
        layout = (states.shape[0], states.shape[1], states.stride(0), states.stride(1))
    first = torch.ones(requests, dtype=torch.int64) if accepted is None else accepted.long()
    step = max(_TOKENS, width)
    kernel = _conv_parallel if x.numel() * width >= _PARALLEL_FROM else _conv
    inside = kernel(
        as_numpy(_flat(x)),
        x.stride(0),
        as_numpy(weight.float().contiguous()),
        as_numpy(_bias(bias, channels)),
        as_numpy(start.contiguous()),
        as_numpy(slot.contiguous()),
        as_numpy(has.contiguous()),
        as_numpy(first.contiguous()),
        as_numpy(memory),
        layout,
        (states is not None, accepted is not None, silu, step, tokens // step + requests),
        as_numpy(out),
    )
    if not inside:
        raise IndexError(
            f"a slot, a number of accepted tokens or a request's tokens lie outside states of "
            f"shape {list(states.shape) if states is not None else None} or {tokens} tokens"
        )
    return out


def _flat(x: torch.Tensor) -> torch.Tensor:
    """All memory from the first value of a tensor to its last."""
    span = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((span,), (1,))


def _bias(bias: torch.Tensor | None, channels: int) -> torch.Tensor:
    if bias is not None:
        return bias.float().contiguous()
    if channels not in _NO_BIAS:
        _NO_BIAS[channels] = torch.zeros(channels)
    return _NO_BIAS[channels]


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)
def _add_tap(total, weight, memory, first):  # type: ignore[no-untyped-def]
    for c in range(total.shape[0]):
        total[c] += weight[c] * widen(memory[first + c])


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)
def _finish(total, silu, out):  # type: ignore[no-untyped-def]
    if silu:
        for c in range(total.shape[0]):
            out[c] = narrow(out, total[c] / (np.float32(1) + exp_f32(-total[c])))
    else:
        for c in range(total.shape[0]):
            out[c] = narrow(out, total[c])


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)
def _owner(start, unit, step):  # type: ignore[no-untyped-def]
    """The last request whose units begin at ``unit`` or before: at ``start // step + r``."""
    low, high = 0, start.shape[0] - 2
    while low < high:
        middle = (low + high + 1) // 2
        if start[middle] // step + middle <= unit:
            low = middle
        else:
            high = middle - 1
    return low


@njit(fastmath=FASTMATH, error_model="numpy", cache=True)
def _keep(x, stride, begin, count, memory, layout, slot, first, has, width, all_rows, channels):  # type: ignore[no-untyped-def]
    """Rows ascend, and each is read at or behind where it is written, so none is lost."""
    before = width - 1
    rows = count + width - 2 if all_rows else before
    for k in range(rows):
        source = k + 1 if all_rows else k + count
        to = slot * layout[2] + k * layout[3]
        if source >= before:
            at = (begin + source - before) * stride
            for c in range(channels):
                memory[to + c] = x[at + c]
        elif has:
            at = slot * layout[2] + (first - 1 + source) * layout[3]
            for c in range(channels):
                memory[to + c] = memory[at + c]
        else:
            for c in range(channels):
                memory[to + c] = narrow(memory, np.float32(0))


def _conv_body(  # type: ignore[no-untyped-def]
    x, stride, weight, bias, start, slots, has_state, accepted, memory, layout, how, out
):
    stateful, all_rows, silu, step, units = how
    width, channels = weight.shape
    before = width - 1
    tokens = out.shape[0]
    requests = slots.shape[0]
    bad = 0
    for r in range(requests):
        n = start[r + 1] - start[r]
        bad += start[r] < 0 or n < 0 or start[r + 1] > tokens
        if stateful and slots[r] > 0:
            bad += slots[r] >= layout[0] or accepted[r] < 1
            bad += accepted[r] + before - 1 > layout[1]
            bad += all_rows and n + width - 2 > layout[1]
    if bad:
        return False
    last = start[requests]
    for t in range(last, tokens):
        for c in range(channels):
            out[t, c] = narrow(out, np.float32(0))
    if requests == 0:
        return True
    for unit in prange(units):
        r = _owner(start, unit, step)
        begin, end = start[r], start[r + 1]
        chunk = unit - (begin // step + r)
        if chunk * step >= end - begin:
            continue
        total = np.empty(channels, dtype=np.float32)
        for t in range(begin + chunk * step, min(end, begin + (chunk + 1) * step)):
            if slots[r] < 1:
                for c in range(channels):
                    out[t, c] = narrow(out, np.float32(0))
                continue
            for c in range(channels):
                total[c] = bias[c]
            for tap in range(width):
                row = t - begin + tap - before
                if row >= 0:
                    _add_tap(total, weight[tap], x, (begin + row) * stride)
                elif has_state[r]:
                    place = slots[r] * layout[2] + (accepted[r] - 1 + row + before) * layout[3]
                    _add_tap(total, weight[tap], memory, place)
            _finish(total, silu, out[t])
        # A step is not shorter than the history, so nobody else reads the slot.
        if chunk == 0 and stateful and slots[r] > 0:
            _keep(
                x, stride, begin, end - begin, memory, layout, slots[r], accepted[r], has_state[r],
                width, all_rows, channels,
            )  # fmt: skip
    return True


_conv: Any = njit(fastmath=FASTMATH, error_model="numpy", cache=True)(_conv_body)
_conv_parallel: Any = njit(fastmath=FASTMATH, error_model="numpy", parallel=True, cache=True)(
    _conv_body
)
