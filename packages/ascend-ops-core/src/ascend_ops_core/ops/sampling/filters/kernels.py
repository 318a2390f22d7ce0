"""Top-k and top-p in Triton: thresholds are found by bisection, nothing is sorted.

Floats are ordered like integers once the bits of negative ones are turned over (their *key*), so
32 halvings find any threshold exactly, whatever the values. Each halving is one pass over the row
that counts what lies above, and sums its exponentials; most rows end earlier, when the count says
that no two different logits are left between the bounds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import block_of, next_power_of_two

# Five passes load a tile, each into buffers of its own, and the last one stores one.
_STREAMED_TILES = 6

# The logits as float32, the count and the mass of each lane, an exponential, a lane's index.
_LIVE_BYTES = 24

_KEY_OF_MINUS_INF = tl.constexpr(-2139095041)


@triton.jit
def _key(value):
    bits = value.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    bits = key ^ ((key >> 31) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _tile(row_ptr, start, lanes, VOCABULARY: tl.constexpr):
    inside = lanes < VOCABULARY - start
    return tl.load(row_ptr + start + lanes, mask=inside, other=float("-inf")).to(tl.float32)


@triton.jit
def _peak(row_ptr, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, VOCABULARY, BLOCK):
        x = _tile(row_ptr, start, lanes, VOCABULARY)
        highest = tl.where(x > highest, x, highest)
    return tl.max(highest, axis=0)


@triton.jit
def _count_from(row_ptr, bound, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    count = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, VOCABULARY, BLOCK):
        x = _tile(row_ptr, start, lanes, VOCABULARY)
        count += tl.where(x >= bound, 1.0, 0.0)
    return tl.sum(count, axis=0)


@triton.jit
def _count_and_mass_from(row_ptr, bound, peak, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    count = tl.zeros((BLOCK,), tl.float32)
    mass = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, VOCABULARY, BLOCK):
        x = _tile(row_ptr, start, lanes, VOCABULARY)
        count += tl.where(x >= bound, 1.0, 0.0)
        mass += tl.where(x >= bound, tl.exp(x - peak), 0.0)
    return tl.sum(count, axis=0), tl.sum(mass, axis=0)


@triton.jit
def _count_equal_from(row_ptr, value, index, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    count = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, VOCABULARY, BLOCK):
        x = _tile(row_ptr, start, lanes, VOCABULARY)
        late = lanes.to(tl.float32) >= index - start
        count += tl.where((x == value) & late, 1.0, 0.0)
    return tl.sum(count, axis=0)


@triton.jit
def _top_k_top_p_kernel(
    logits_ptr,
    k_ptr,
    p_ptr,
    out_ptr,
    row_stride,
    programs,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    TOP_K: tl.constexpr,
    TOP_P: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row_ptr = logits_ptr + as_int64(unit) * row_stride
        peak = _peak(row_ptr, VOCABULARY, BLOCK)
        top = _key(peak)
        low = tl.full((), _KEY_OF_MINUS_INF, tl.int32)
        first = tl.full((), 0, tl.int32)
        if TOP_K:
            k = tl.load(k_ptr + unit).to(tl.int32)
            high = tl.where((k > 0) & (k < VOCABULARY), top, low)
            # The largest key from which at least k logits count.
            while low < high:
                middle = (low | high) - ((low ^ high) >> 1)
                count = _count_from(row_ptr, _value(middle), VOCABULARY, BLOCK)
                enough = count >= k
                low = tl.where(enough, middle, low)
                high = tl.where(enough, tl.where(count == k, middle, high), middle - 1)
        if TOP_P:
            p = tl.load(p_ptr + unit).to(tl.float32)
            count, mass = _count_and_mass_from(row_ptr, _value(low), peak, VOCABULARY, BLOCK)
            target = p * mass
            nucleus = p < 1.0
            high = tl.where(nucleus, top, low)
            above = tl.full((), 0.0, tl.float32)
            mass_above = tl.full((), 0.0, tl.float32)
            # The smallest key above which less than the target lies. `count` logits lie from
            # `low` on and `above` beyond `high`.
            while (low < high) & (count - above > 1.0):
                middle = (low & high) + ((low ^ high) >> 1)
                more, more_mass = _count_and_mass_from(
                    row_ptr, _value(middle + 1), peak, VOCABULARY, BLOCK
                )
                inside = more_mass < target
                high = tl.where(inside, middle, high)
                above = tl.where(inside, more, above)
                mass_above = tl.where(inside, more_mass, mass_above)
                low = tl.where(inside, low, middle + 1)
                count = tl.where(inside, count, more)
            # Of equal logits at the border, as many stay as it takes to reach the target.
            equal = count - above
            room = (target - mass_above) / tl.exp(_value(low) - peak)
            room = tl.where(room < equal, room, equal)
            room = tl.where(room > 1.0, room, 1.0)
            quota = room.to(tl.int32).to(tl.float32)
            quota = tl.where(quota < room, quota + 1.0, quota)
            last = tl.where(nucleus & (quota < equal), VOCABULARY - 1, 0)
            while first < last:
                middle = (first + last + 1) >> 1
                found = _count_equal_from(row_ptr, _value(low), middle, VOCABULARY, BLOCK)
                first = tl.where(found >= quota, middle, first)
                last = tl.where(found >= quota, last, middle - 1)
        bound = _value(low)
        for start in range(0, VOCABULARY, BLOCK):
            x = _tile(row_ptr, start, lanes, VOCABULARY)
            if TOP_P:
                late = lanes.to(tl.float32) >= first - start
                kept = tl.where((x > bound) | ((x >= bound) & late), x, float("-inf"))
            else:
                kept = tl.where(x >= bound, x, float("-inf"))
            out = out_ptr + as_int64(unit) * VOCABULARY + start + lanes
            tl.store(out, kept.to(out_ptr.dtype.element_ty), mask=lanes < VOCABULARY - start)


def top_k_top_p(
    logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.sampling.top_k_top_p`."""
    rows, vocabulary = logits.shape
    if (k is None and p is None) or vocabulary < 2:
        return logits.clone(memory_format=torch.contiguous_format)
    out = torch.empty((rows, vocabulary), dtype=logits.dtype, device=logits.device)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    block = block_of(
        current_facts(),
        streamed=_STREAMED_TILES * logits.element_size(),
        local=_LIVE_BYTES,
        maximum=next_power_of_two(vocabulary),
    )
    arguments = {
        "logits_ptr": logits,
        "k_ptr": None if k is None else k.contiguous(),
        "p_ptr": None if p is None else p.contiguous(),
        "out_ptr": out,
        "row_stride": logits.stride(0),
        "programs": rows,
    }
    constants = {
        "VOCABULARY": vocabulary,
        "BLOCK": block,
        "TOP_K": k is not None,
        "TOP_P": p is not None,
    }
    launch(_top_k_top_p_kernel, rows, arguments, constants)
    return out
