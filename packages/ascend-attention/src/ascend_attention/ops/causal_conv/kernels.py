"""The causal convolution in Triton.

A program keeps the weights of its channels and walks over chunks of requests; the last inputs stay
in the buffer from one token to the next, so every input is read once. Where a request has several
chunks, the first one alone touches its slot: it reads the history and writes the request's last
inputs, so no program waits for another.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64, sigmoid_divisor
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

_CHUNK = 64
# Bytes alive per channel besides tokens and states: four weights, four inputs, the sum, and the
# inputs of the next token.
_LIVE_BYTES = 64
_LEAST_BLOCK = 256


@triton.jit
def _row(pointer, lanes, bound):
    return tl.load(pointer + lanes, mask=lanes < bound, other=0.0).to(tl.float32)


@triton.jit
def owner_of_chunk(start_ptr, unit, requests, CHUNK: tl.constexpr):
    """The last request whose chunks begin at ``unit`` or before: at ``start // CHUNK + r``.

    That leaves every request as many places as it has chunks, since of two neighbours the second
    begins at most one chunk too late.
    """
    low = unit * 0
    high = low + requests
    while low < high:
        middle = (low + high + 1) // 2
        place = tl.load(start_ptr + middle).to(tl.int32) // CHUNK + middle
        low = tl.where(place <= unit, middle, low)
        high = tl.where(place <= unit, high, middle - 1)
    return low


@triton.jit
def _before(x, state, lanes, left, back, begin_of_chunk, first, has, x_stride, state_row_stride,
            SEARCHED: tl.constexpr, STATEFUL: tl.constexpr, TAPS: tl.constexpr):  # fmt: skip
    """The input ``back`` tokens before a chunk: of the request, of its slot, or zeros."""
    place = begin_of_chunk - back
    if SEARCHED:
        value = _row(x + as_int64(place) * x_stride, lanes, tl.where(place >= 0, left, 0))
        if STATEFUL:
            bound = tl.where(has & (place < 0), left, 0)
            row = first + TAPS - 1 + place
            value += _row(state + as_int64(row) * state_row_stride, lanes, bound)
    elif STATEFUL:
        row = first + TAPS - 1 + place
        value = _row(state + as_int64(row) * state_row_stride, lanes, tl.where(has, left, 0))
    else:
        value = tl.zeros(lanes.shape, tl.float32)
    return value


@triton.jit
def _conv_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    start_ptr,
    states_ptr,
    slots_ptr,
    has_ptr,
    accepted_ptr,
    out_ptr,
    tokens,
    channels,
    requests,
    units,
    x_stride,
    state_stride,
    state_row_stride,
    share,
    programs,
    TAPS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    SEARCHED: tl.constexpr,
    STATEFUL: tl.constexpr,
    GIVEN: tl.constexpr,
    ALL_ROWS: tl.constexpr,
    BIASED: tl.constexpr,
    SILU: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for part in range(tl.program_id(0), programs, tl.num_programs(0)):
        column = part // share
        first_unit = part - column * share
        start = column * BLOCK
        left = channels - start
        inside = lanes < left
        # The weight of the token itself is w0, that of the one before w1, and so on.
        w0 = _row(weight_ptr + (TAPS - 1) * channels + start, lanes, left)
        w1 = _row(weight_ptr + (TAPS - 2) * channels + start, lanes, left)
        w2, w3 = w0, w0
        if TAPS >= 3:
            w2 = _row(weight_ptr + (TAPS - 3) * channels + start, lanes, left)
        if TAPS >= 4:
            w3 = _row(weight_ptr + start, lanes, left)
        bias = w0
        if BIASED:
            bias = _row(bias_ptr + start, lanes, left)
        for unit in range(first_unit, units, share):
            r = tl.full((), 0, tl.int32) + unit
            chunk = r * 0
            if SEARCHED:
                r = owner_of_chunk(start_ptr, r, requests, CHUNK)
            begin = tl.load(start_ptr + r).to(tl.int32)
            # Behind the last request lies padding.
            real = r < requests
            end = tl.load(start_ptr + tl.where(real, r + 1, r)).to(tl.int32)
            end = tl.where(real, end, tokens)
            if SEARCHED:
                chunk = unit - (begin // CHUNK + r)
            count = end - begin
            from_token = chunk * CHUNK
            to_token = count
            if SEARCHED:
                to_token = tl.where(count > from_token + CHUNK, from_token + CHUNK, count)
            slot = tl.where(real, 1, 0)
            has = slot > 0
            first = slot * 0
            if STATEFUL:
                slot = tl.load(slots_ptr + tl.where(real, r, 0), mask=real, other=0).to(tl.int32)
                has = slot > 0
                if GIVEN:
                    has = has & (tl.load(has_ptr + r, mask=has, other=0) > 0)
                if ALL_ROWS:
                    first = tl.load(accepted_ptr + r, mask=slot > 0, other=1).to(tl.int32) - 1
            x = x_ptr + as_int64(begin) * x_stride + start
            out = out_ptr + as_int64(begin) * channels + start
            state = x
            if STATEFUL:
                state = states_ptr + as_int64(slot) * state_stride + start
            if slot > 0 and to_token > from_token:
                # The oldest first: where all rows are kept, they are written in that order too.
                h3 = _before(x, state, lanes, left, TAPS - 1, from_token, first, has, x_stride,
                             state_row_stride, SEARCHED, STATEFUL, TAPS)  # fmt: skip
                h2, h1 = h3, h3
                if TAPS >= 4:
                    h2 = _before(x, state, lanes, left, 2, from_token, first, has, x_stride,
                                 state_row_stride, SEARCHED, STATEFUL, TAPS)  # fmt: skip
                if TAPS >= 3:
                    h1 = _before(x, state, lanes, left, 1, from_token, first, has, x_stride,
                                 state_row_stride, SEARCHED, STATEFUL, TAPS)  # fmt: skip
                if ALL_ROWS:
                    to = state + lanes
                    if TAPS >= 4:
                        tl.store(to, h2.to(states_ptr.dtype.element_ty), mask=inside)
                        to += state_row_stride
                    if TAPS >= 3:
                        tl.store(to, h1.to(states_ptr.dtype.element_ty), mask=inside)
                for t in range(from_token, to_token):
                    new = _row(x + as_int64(t) * x_stride, lanes, left)
                    total = new * w0 + h1 * w1
                    if TAPS >= 3:
                        total += h2 * w2
                    if TAPS >= 4:
                        total += h3 * w3
                        h3 = h2
                    if TAPS >= 3:
                        h2 = h1
                    h1 = new
                    if BIASED:
                        total += bias
                    if SILU:
                        total = total / sigmoid_divisor(total)
                    to = out + as_int64(t) * channels + lanes
                    tl.store(to, total.to(out_ptr.dtype.element_ty), mask=inside)
                    if ALL_ROWS:
                        to = state + as_int64(t + TAPS - 2) * state_row_stride + lanes
                        tl.store(to, new.to(states_ptr.dtype.element_ty), mask=inside)
                if STATEFUL and not ALL_ROWS:
                    to = state + lanes
                    if chunk == 0:
                        if SEARCHED:
                            last = x + as_int64(count) * x_stride
                            if count > CHUNK:
                                h1 = _row(last - x_stride, lanes, left)
                                if TAPS >= 3:
                                    h2 = _row(last - 2 * x_stride, lanes, left)
                                if TAPS >= 4:
                                    h3 = _row(last - 3 * x_stride, lanes, left)
                        if TAPS >= 4:
                            tl.store(to, h3.to(states_ptr.dtype.element_ty), mask=inside)
                            to += state_row_stride
                        if TAPS >= 3:
                            tl.store(to, h2.to(states_ptr.dtype.element_ty), mask=inside)
                            to += state_row_stride
                        tl.store(to, h1.to(states_ptr.dtype.element_ty), mask=inside)
            if slot < 1:
                nothing = tl.zeros((BLOCK,), out_ptr.dtype.element_ty)
                for t in range(from_token, to_token):
                    tl.store(out + as_int64(t) * channels + lanes, nothing, mask=inside)


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
    taps, requests = weight.shape[0], query_start.shape[0] - 1
    out = torch.empty((tokens, channels), dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    # One program sees a request of few tokens whole, and so does it where all rows are kept.
    searched = most_tokens > _CHUNK and accepted is None
    units = (tokens // _CHUNK if searched else 0) + requests + 1
    facts = current_facts()
    block = block_of(
        facts,
        streamed=2 * x.element_size() + (0 if states is None else states.element_size()),
        local=_LIVE_BYTES,
        minimum=32,
        maximum=next_power_of_two(channels),
    )
    while block > _LEAST_BLOCK and units * -(-channels // block) < facts.vector_cores:
        block //= 2
    columns = -(-channels // block)
    share = max(1, min(units, facts.vector_cores // columns))
    arguments = {
        "x_ptr": x,
        "weight_ptr": weight.contiguous(),
        "bias_ptr": None if bias is None else bias.contiguous(),
        "start_ptr": query_start.contiguous(),
        "states_ptr": states,
        "slots_ptr": None if slots is None else slots.contiguous(),
        "has_ptr": None if has_state is None else has_state.contiguous().view(torch.uint8),
        "accepted_ptr": None if accepted is None else accepted.contiguous(),
        "out_ptr": out,
        "tokens": tokens,
        "channels": channels,
        "requests": requests,
        "units": units,
        "x_stride": x.stride(0),
        "state_stride": 0 if states is None else states.stride(0),
        "state_row_stride": 0 if states is None else states.stride(1),
        "share": share,
        "programs": columns * share,
    }
    constants = {
        "TAPS": taps,
        "CHUNK": _CHUNK,
        "BLOCK": block,
        "SEARCHED": searched,
        "STATEFUL": states is not None,
        "GIVEN": has_state is not None,
        "ALL_ROWS": accepted is not None,
        "BIASED": bias is not None,
        "SILU": silu,
    }
    launch(_conv_kernel, columns * share, arguments, constants)
    return out
