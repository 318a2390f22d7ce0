"""The split in Triton: tiles of tokens for each key head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two, tile_rows

_BITS = {4: torch.int32, 2: torch.int16}


@triton.jit
def _move(source, source_stride, to, to_stride, r, left, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    mask = (r < left)[:, None] & (columns < WIDTH)[None, :]
    data = tl.load(source + r[:, None] * source_stride + columns[None, :], mask=mask)
    tl.store(to + r[:, None] * to_stride + columns[None, :], data, mask=mask)


@triton.jit
def _split_kernel(
    qkvz_ptr,
    ba_ptr,
    packed_ptr,
    gate_ptr,
    b_ptr,
    a_ptr,
    tokens,
    qkvz_stride,
    ba_stride,
    programs,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    ROWS: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
):
    r = tl.arange(0, ROWS)
    wide = HEADS * (2 * KEY + VALUE)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        tile = unit // HEADS
        head = unit - tile * HEADS
        first = as_int64(tile) * ROWS
        left = tokens - first
        source = qkvz_ptr + first * qkvz_stride + head * (2 * KEY + 2 * VALUE)
        packed = packed_ptr + first * wide
        _move(source, qkvz_stride, packed + head * KEY, wide, r, left, KEY, KEY_BLOCK)
        keys = packed + (HEADS + head) * KEY
        _move(source + KEY, qkvz_stride, keys, wide, r, left, KEY, KEY_BLOCK)
        values = packed + 2 * HEADS * KEY + head * VALUE
        _move(source + 2 * KEY, qkvz_stride, values, wide, r, left, VALUE, VALUE_BLOCK)
        gate = gate_ptr + first * (HEADS * VALUE) + head * VALUE
        source += 2 * KEY + VALUE
        _move(source, qkvz_stride, gate, HEADS * VALUE, r, left, VALUE, VALUE_BLOCK)
        source = ba_ptr + first * ba_stride + head * (2 * GROUP)
        to = first * (HEADS * GROUP) + head * GROUP
        _move(source, ba_stride, b_ptr + to, HEADS * GROUP, r, left, GROUP, GROUP_BLOCK)
        _move(source + GROUP, ba_stride, a_ptr + to, HEADS * GROUP, r, left, GROUP, GROUP_BLOCK)


def split_qkvz_ba(
    qkvz: torch.Tensor,
    ba: torch.Tensor,
    key_heads: int,
    value_heads: int,
    key_width: int,
    value_width: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.projection_split.split_qkvz_ba`."""
    tokens, group = qkvz.shape[0], value_heads // key_heads
    packed = qkvz.new_empty(tokens, 2 * key_heads * key_width + value_heads * value_width)
    gate = qkvz.new_empty(tokens, value_heads, value_width)
    b, a = ba.new_empty(tokens, value_heads), ba.new_empty(tokens, value_heads)
    key_block, value_block = (next_power_of_two(n) for n in (key_width, group * value_width))
    taken = tile_rows(
        current_facts(),
        2 * (key_block + value_block) + 64,
        streamed=qkvz.element_size(),
        maximum=next_power_of_two(tokens),
    )
    programs = -(-tokens // taken) * key_heads
    bits = _BITS[qkvz.element_size()]
    arguments = {
        "qkvz_ptr": qkvz.view(bits),
        "ba_ptr": ba.view(bits),
        "packed_ptr": packed.view(bits),
        "gate_ptr": gate.view(bits),
        "b_ptr": b.view(bits),
        "a_ptr": a.view(bits),
        "tokens": tokens,
        "qkvz_stride": qkvz.stride(0),
        "ba_stride": ba.stride(0),
        "programs": programs,
    }
    constants = {
        "HEADS": key_heads,
        "GROUP": group,
        "KEY": key_width,
        "VALUE": group * value_width,
        "ROWS": taken,
        "KEY_BLOCK": key_block,
        "VALUE_BLOCK": value_block,
        "GROUP_BLOCK": next_power_of_two(group),
    }
    launch(_split_kernel, programs, arguments, constants)
    return packed, gate, b, a
