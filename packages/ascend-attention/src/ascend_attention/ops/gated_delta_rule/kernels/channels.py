"""Products within chunks whose heads have a decay for every channel, in Triton.

The decay between two tokens stands inside the sum over channels. Tokens of different blocks of
``BLOCK`` are parted by the middle of exactly one block of ``2 HALF`` tokens: decays up to it and
from it have no positive exponent, are taken into the rows, and the matrix unit does the rest.
Tokens of one block go to the vector unit, key after key, and no product of theirs reaches memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two

from ascend_attention.ops.gated_delta_rule.kernels.rows import (
    EPSILON,
    lengths,
    load_rows,
    strides,
)
from ascend_attention.ops.gated_delta_rule.layout import BLOCK, CHUNK
from ascend_attention.ops.gated_delta_rule.tiles import SMALLEST, heads_of_tokens


@triton.jit
def _near_kernel(
    query_ptr,
    key_ptr,
    sums_ptr,
    beta_ptr,
    table_ptr,
    system_ptr,
    inner_ptr,
    scale,
    query_token,
    query_head,
    key_token,
    key_head,
    programs,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    TAKEN: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    """Products of the tokens of a block with its keys, for some heads, token after token."""
    BLOCKS: tl.constexpr = CHUNK // BLOCK
    GROUPS: tl.constexpr = HEADS // TAKEN
    h = tl.arange(0, TAKEN)
    r = tl.arange(0, BLOCK)
    d = tl.arange(0, PADDED)
    place = r.to(tl.float32)
    rows = (h < TAKEN)[:, None] & (d < WIDTH)[None, :]
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        block = unit // GROUPS
        head = (unit - block * GROUPS) * TAKEN
        chunk = block // BLOCKS
        top = (block - chunk * BLOCKS) * BLOCK
        left = tl.load(table_ptr + chunk * 2 + 1) - top
        first = as_int64(tl.load(table_ptr + chunk * 2)) + top
        row = first * HEADS + head
        at_key = key_ptr + first * key_token + as_int64(head // SHARED) * key_head
        at_key = at_key + h[:, None] * key_head + d[None, :]
        at_query = query_ptr + first * query_token + as_int64(head // SHARED) * query_head
        at_query = at_query + h[:, None] * query_head + d[None, :]
        at_sums = sums_ptr + row * WIDTH + h[:, None] * WIDTH + d[None, :]
        tile = rows[:, None, :] & (r < left)[None, :, None]
        at = at_key[:, None, :] + r[None, :, None] * key_token
        keys = tl.load(at, mask=tile, other=0.0).to(tl.float32)
        if NORMALIZE:
            keys = keys / tl.sqrt(tl.sum(keys * keys, axis=2) + EPSILON)[:, :, None]
        at = at_sums[:, None, :] + r[None, :, None] * (HEADS * WIDTH)
        sums = tl.load(at, mask=tile, other=0.0)
        to = row * CHUNK + top + h[:, None] * CHUNK + r[None, :]
        mask = (h < TAKEN)[:, None] & (r < BLOCK)[None, :]
        for token in range(0, tl.where(left < BLOCK, left, BLOCK)):
            its = tl.load(at_sums + token * (HEADS * WIDTH), mask=rows, other=0.0)
            # Of later keys, which grow, nothing is taken.
            near = keys * tl.exp(its[:, None, :] - sums)
            key = tl.load(at_key + token * key_token, mask=rows, other=0.0).to(tl.float32)
            beta = tl.load(beta_ptr + row + token * HEADS + h).to(tl.float32) * -1.0
            beta = beta / lengths(key, NORMALIZE)
            found = tl.sum(near * key[:, None, :], axis=2) * beta[:, None]
            found = tl.where((place < token * 1.0)[None, :], found, 0.0)
            tl.store(system_ptr + to + token * (HEADS * CHUNK), found, mask=mask)
            query = tl.load(at_query + token * query_token, mask=rows, other=0.0).to(tl.float32)
            factor = scale / lengths(query, NORMALIZE)
            found = tl.sum(near * query[:, None, :], axis=2) * factor[:, None]
            found = tl.where((place <= token * 1.0)[None, :], found, 0.0)
            found = found.to(inner_ptr.dtype.element_ty)
            tl.store(inner_ptr + to + token * (HEADS * CHUNK), found, mask=mask)


@triton.jit
def _far_kernel(
    query_ptr,
    key_ptr,
    sums_ptr,
    beta_ptr,
    table_ptr,
    system_ptr,
    inner_ptr,
    scale,
    query_token,
    query_head,
    key_token,
    key_head,
    programs,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
    HALF: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    """Products of the later half of ``2 HALF`` tokens with keys of the earlier one.

    The first token of the later half parts them.
    """
    PAIRS: tl.constexpr = CHUNK // (2 * HALF)
    i = tl.arange(0, HALF)
    d = tl.arange(0, PADDED)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        pair = unit // HEADS
        head = unit - pair * HEADS
        chunk = pair // PAIRS
        top = (pair - chunk * PAIRS) * (2 * HALF)
        left = tl.load(table_ptr + chunk * 2 + 1) - top - HALF
        # Tokens of the later half follow a whole earlier one.
        seen = tl.where(left > 0, HALF, 0)
        first = as_int64(tl.load(table_ptr + chunk * 2)) + top
        row = first * HEADS + head
        at_key = key_ptr + first * key_token + as_int64(head // SHARED) * key_head
        at_sums = sums_ptr + row * WIDTH
        at_middle = at_sums + HALF * (HEADS * WIDTH)
        middle = tl.load(at_middle + d, mask=(d < WIDTH) & (left > 0), other=0.0)[None, :]
        sums = load_rows(at_sums, HEADS * WIDTH, seen, WIDTH, PADDED, HALF)
        early = load_rows(at_key, key_token, seen, WIDTH, PADDED, HALF)
        early = early / lengths(early, NORMALIZE)[:, None]
        early = tl.trans(early * tl.exp(middle - sums))
        # Rows that do not exist grow, but nothing is stored of them.
        sums = load_rows(at_middle, HEADS * WIDTH, left, WIDTH, PADDED, HALF)
        late = tl.exp(sums - middle)
        keys = load_rows(at_key + HALF * key_token, key_token, left, WIDTH, PADDED, HALF)
        beta = tl.load(beta_ptr + row + (i + HALF) * HEADS, mask=i < left, other=0.0)
        factor = beta.to(tl.float32) * -1.0 / lengths(keys, NORMALIZE)
        found = tl.dot(keys * late, early, input_precision="ieee") * factor[:, None]
        to = row * CHUNK + top + (i + HALF)[:, None] * (HEADS * CHUNK) + i[None, :]
        mask = (i < left)[:, None] & (i < HALF)[None, :]
        tl.store(system_ptr + to, found, mask=mask)
        at = query_ptr + (first + HALF) * query_token + as_int64(head // SHARED) * query_head
        queries = load_rows(at, query_token, left, WIDTH, PADDED, HALF)
        factor = scale / lengths(queries, NORMALIZE)
        found = tl.dot(queries * late, early, input_precision="ieee") * factor[:, None]
        tl.store(inner_ptr + to, found.to(inner_ptr.dtype.element_ty), mask=mask)


def channel_products(
    query: torch.Tensor,
    key: torch.Tensor,
    sums: torch.Tensor,
    beta: torch.Tensor,
    table: torch.Tensor,
    scale: float,
    normalize: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What :func:`..products.products` gives for sums ``[T, H, K]``."""
    tokens, heads, width = sums.shape
    shape = (tokens, heads, CHUNK)
    system = torch.empty(shape, dtype=torch.float32, device=key.device)
    # The kernels leave out what lies above the blocks on the diagonal.
    inner = torch.zeros(shape, dtype=key.dtype, device=key.device)
    padded = max(next_power_of_two(width), SMALLEST)
    arguments = {
        "query_ptr": query,
        "key_ptr": key,
        "sums_ptr": sums,
        "beta_ptr": beta.contiguous(),
        "table_ptr": table,
        "system_ptr": system,
        "inner_ptr": inner,
        "scale": float(scale),
        **strides(query=query, key=key),
    }
    constants = {
        "HEADS": heads,
        "SHARED": heads // key.shape[1],
        "WIDTH": width,
        "PADDED": padded,
        "CHUNK": CHUNK,
        "NORMALIZE": normalize,
    }
    # Heads that follow each other have keys that do.
    taken = heads_of_tokens(current_facts(), heads, padded, key.element_size())
    taken = taken if heads == key.shape[1] else 1
    programs = table.shape[0] * (CHUNK // BLOCK) * (heads // taken)
    more = {"BLOCK": BLOCK, "TAKEN": taken}
    launch(_near_kernel, programs, arguments | {"programs": programs}, constants | more)
    half = BLOCK
    while half < CHUNK:
        programs = table.shape[0] * heads * (CHUNK // (2 * half))
        launch(
            _far_kernel,
            programs,
            arguments | {"programs": programs},
            constants | {"HALF": half},
            cube=True,
        )
        half *= 2
    return system, inner
