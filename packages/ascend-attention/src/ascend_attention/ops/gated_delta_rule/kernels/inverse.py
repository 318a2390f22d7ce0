"""The inverse of a chunk's triangular system in Triton: blocks on the diagonal, then pairs."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch

from ascend_attention.ops.gated_delta_rule.layout import BLOCK, CHUNK
from ascend_attention.ops.gated_delta_rule.tiles import heads_of_blocks

# Blocks of a chunk that a program inverts one after the other, so that it looks them up once.
_BLOCKS = 2


@triton.jit
def _blocks_kernel(
    system_ptr,
    table_ptr,
    inverse_ptr,
    programs,
    HEADS: tl.constexpr,
    TAKEN: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Inverses of the blocks on the diagonal, those of some heads at once, row after row.

    The rows above and below the middle of a block are two tiles, so that a row of the first half
    is not multiplied with rows that are behind it. To the right of a block there are zeros.
    """
    PARTS: tl.constexpr = CHUNK // (BLOCKS * BLOCK)
    GROUPS: tl.constexpr = HEADS // TAKEN
    HALF: tl.constexpr = BLOCK // 2
    h = tl.arange(0, TAKEN)
    r = tl.arange(0, HALF)
    c = tl.arange(0, BLOCK)
    ahead = c[None, :] - r[:, None]
    nothing = tl.zeros((BLOCK, BLOCK), tl.float32)
    row = h[:, None] * CHUNK + r[None, :]
    tile = h[:, None, None] * CHUNK + r[None, :, None] * (HEADS * CHUNK) + c[None, None, :]
    real = (h < TAKEN)[:, None, None] & (c < BLOCK)[None, None, :]
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        part = unit // GROUPS
        group = (unit - part * GROUPS) * TAKEN
        chunk = part // PARTS
        begin = (part - chunk * PARTS) * (BLOCKS * BLOCK)
        first = as_int64(tl.load(table_ptr + chunk * 2))
        count = tl.load(table_ptr + chunk * 2 + 1)
        for block in range(0, BLOCKS):
            top = begin + block * BLOCK
            left = count - top
            if left > 0:
                at = ((first + top) * HEADS + group) * CHUNK + top
                for one_head in range(0, TAKEN):
                    for beyond in range(top + BLOCK, CHUNK, BLOCK):
                        to = inverse_ptr + at + one_head * CHUNK + beyond - top
                        to = to + c[:, None] * (HEADS * CHUNK) + c[None, :]
                        tl.store(to, nothing, mask=(c < left)[:, None] & (c < BLOCK)[None, :])
                one = tl.where(ahead == 0, 1.0, 0.0)
                upper = tl.broadcast_to(one[None, :, :], (TAKEN, HALF, BLOCK))
                for k in range(1, HALF):
                    # Rows that do not exist repeat the first one, which changes none above them.
                    from_row = tl.where(k < left, k, 0) * (HEADS * CHUNK)
                    factors = tl.load(system_ptr + at + from_row + row)
                    found = tl.sum(factors[:, :, None] * upper, axis=1)
                    here = tl.where(r == k, 1.0, 0.0)
                    upper = upper + here[None, :, None] * found[:, None, :]
                tl.store(inverse_ptr + at + tile, upper, mask=real & (r < left)[None, :, None])
                one = tl.where(ahead == HALF, 1.0, 0.0)
                lower = tl.broadcast_to(one[None, :, :], (TAKEN, HALF, BLOCK))
                for k in range(0, HALF):
                    from_row = tl.where(k + HALF < left, k + HALF, 0) * (HEADS * CHUNK)
                    factors = tl.load(system_ptr + at + from_row + row)
                    products = factors[:, :, None] * upper
                    factors = tl.load(system_ptr + at + from_row + HALF + row)
                    found = tl.sum(products + factors[:, :, None] * lower, axis=1)
                    here = tl.where(r == k, 1.0, 0.0)
                    lower = lower + here[None, :, None] * found[:, None, :]
                to = inverse_ptr + at + HALF * (HEADS * CHUNK) + tile
                tl.store(to, lower, mask=real & (r < left - HALF)[None, :, None])


@triton.jit
def _merge_kernel(
    system_ptr,
    table_ptr,
    inverse_ptr,
    programs,
    HEADS: tl.constexpr,
    TAKEN: tl.constexpr,
    CHUNK: tl.constexpr,
    HALF: tl.constexpr,
):
    """What lies between two blocks whose inverses are there: products of three blocks in memory."""
    PAIRS: tl.constexpr = CHUNK // (2 * HALF)
    GROUPS: tl.constexpr = HEADS // TAKEN
    i = tl.arange(0, HALF)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        chunk = unit // GROUPS
        group = (unit - chunk * GROUPS) * TAKEN
        first = as_int64(tl.load(table_ptr + chunk * 2))
        count = tl.load(table_ptr + chunk * 2 + 1)
        tile = i[:, None] * (HEADS * CHUNK) + i[None, :]
        for number in tl.static_range(0, TAKEN * PAIRS):
            head = group + number // PAIRS
            top = (number % PAIRS) * (2 * HALF)
            left = count - top - HALF
            at = ((first + top) * HEADS + head) * CHUNK + top
            below = at + HALF * (HEADS * CHUNK)
            mask = (i < left)[:, None] & (i < HALF)[None, :]
            lower = tl.load(inverse_ptr + below + HALF + tile, mask=mask, other=0.0)
            between = tl.load(system_ptr + below + tile, mask=mask, other=0.0)
            seen = (i < left + HALF)[:, None] & (i < HALF)[None, :]
            upper = tl.load(inverse_ptr + at + tile, mask=seen, other=0.0)
            found = tl.dot(lower, between, input_precision="ieee")
            found = tl.dot(found, upper, input_precision="ieee")
            tl.store(inverse_ptr + below + tile, found, mask=mask)


def inverses(system: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Invert the triangular system of every chunk.

    Args:
        system: ``[T, H, CHUNK]`` float32, ``-A`` of :mod:`..chunked`; above the diagonal only its
            blocks on the diagonal are read, in which zeros stand there.
        table: from :func:`chunk_table`.

    Returns:
        ``(I + A)^-1``, ``[T, H, CHUNK]`` float32; zeros above the diagonal.
    """
    heads = system.shape[1]
    inverse = torch.empty_like(system)
    arguments = {"system_ptr": system, "table_ptr": table, "inverse_ptr": inverse}
    constants = {"HEADS": heads, "CHUNK": CHUNK}
    taken = heads_of_blocks(current_facts(), heads)
    programs = table.shape[0] * (CHUNK // (_BLOCKS * BLOCK)) * (heads // taken)
    more = {"TAKEN": taken, "BLOCK": BLOCK, "BLOCKS": _BLOCKS}
    launch(_blocks_kernel, programs, arguments | {"programs": programs}, constants | more)
    half = BLOCK
    while half < CHUNK:
        # As many pairs for every program, which share its flags.
        taken = math.gcd(heads, 2 * half // BLOCK)
        programs = table.shape[0] * (heads // taken)
        more = {"TAKEN": taken, "HALF": half}
        launch(
            _merge_kernel,
            programs,
            arguments | {"programs": programs},
            constants | more,
            cube=True,
        )
        half *= 2
    return inverse
