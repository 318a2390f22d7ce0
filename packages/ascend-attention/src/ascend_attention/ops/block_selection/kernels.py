"""Scores and selection of blocks in Triton.

Scores: a row is one index head of one query. A tile of rows is multiplied with one block of keys
after another, so that keys are loaded once for all queries of a request in the tile; where requests
change inside a tile, each has its turn over all rows and stores those that are its own. Blocks that
every row of a turn sees whole, and that none takes anyway, need no look at positions, and most
blocks of a long context are such; on A2 and A3 they have a loop of their own, without tiles of
masks. A5 has vector operations for the one value that a row has from a block, so there one loop
looks at the positions of all blocks after their products, and keeps one tile of them.

Selection: a tile of rows stays in the unified buffer while its best candidates are taken one by
one, which needs neither a sort nor a second pass for what is invalid.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two, tile_rows

from ascend_attention.ops.block_selection import reference
from ascend_attention.ops.block_selection.parts import best_of_parts

# The smallest side of a product.
_FEWEST_ROWS = 16
_MOST_ROWS = 128
# Where positions or first blocks are looked at, too, with tiles of them beside the products.
_MOST_ROWS_COMPARED = 64
# Where that is done for rows, and nothing lies beside the products: keys are read half as often.
_MOST_ROWS_ALONE = 256
_MOST_KEYS = 128

# Columns without a score that are written together.
_COLUMNS = 32

_MOST_CHOOSING = 64
# Columns of the narrowest tile: 32 bytes, the least that a transfer moves.
_NARROWEST = 8

# Candidates of a row that are kept in the unified buffer; more are taken in parts.
_MOST_CANDIDATES = 2048

# Bytes per candidate: score and number, comparison and what replaces them.
_CANDIDATE_BYTES = 20

# Units of work per matrix core, so that a core with short requests takes more of them.
_UNITS_PER_CORE = 4

_LEAST = tl.constexpr(reference.LEAST)
_INIT = tl.constexpr(reference.INIT)
_LOCAL = tl.constexpr(reference.LOCAL)
# Above every number of a block, and exact as a float.
_NO_BLOCK = tl.constexpr(1 << 24)


@triton.jit
def _with_priorities(
    scores, number, behind_it, INIT_BLOCKS: tl.constexpr, LOCAL_BLOCKS: tl.constexpr
):
    """Scores of block ``number``; ``behind_it`` is how many more a row sees, negative for none."""
    if INIT_BLOCKS > 0:
        scores = tl.where(number < INIT_BLOCKS, _INIT, scores)
    if LOCAL_BLOCKS > 0:
        scores = tl.where(behind_it < LOCAL_BLOCKS, _LOCAL, scores)
    return tl.where(behind_it >= 0.0, scores, float("-inf"))


@triton.jit
def _largest(
    query,
    key_ptr,
    table,
    number,
    place,
    last,
    block_stride,
    row_stride,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    PLAIN: tl.constexpr,
    BY_ROW: tl.constexpr,
    INIT_BLOCKS: tl.constexpr,
    LOCAL_BLOCKS: tl.constexpr,
):
    """``[ROWS]`` largest products with the keys of a block; unless it is plain, with priorities."""
    d = tl.arange(0, PADDED)
    k = tl.arange(0, KEYS)
    # Vector cores compare floats, and integers in eight steps; positions are exact as both.
    key = k.to(tl.float32)
    at = key_ptr + as_int64(tl.load(table + number)) * block_stride
    best = tl.full((query.shape[0],), float("-inf"), tl.float32)
    for row in tl.static_range(0, PAGE, KEYS):
        to = at + row * row_stride + k[:, None] * row_stride + d[None, :]
        keys = tl.load(to) if PADDED == DIM else tl.load(to, mask=(d < DIM)[None, :], other=0.0)
        products = tl.dot(query, tl.trans(keys), input_precision="ieee")
        # What a row does not see whole, it takes anyway if it takes its latest block.
        if not PLAIN and LOCAL_BLOCKS == 0:
            seen = key[None, :] <= (place - (number * PAGE + row).to(tl.float32))[:, None]
            products = tl.where(seen, products, _LEAST)
        if not BY_ROW:
            # A comparison with NaN is false. That a maximum passes NaN over is Triton's rule, which
            # the compiler for A5 writes out, and the one for A2 leaves to the vector unit.
            products = tl.where(products > _LEAST, products, _LEAST)
            if not PLAIN:
                # Whole tiles: of a row's one value A2 would compare one after the other.
                behind_it = tl.broadcast_to((last - number.to(tl.float32))[:, None], products.shape)
                products = _with_priorities(products, number, behind_it, INIT_BLOCKS, LOCAL_BLOCKS)
        top = tl.max(products, axis=1)
        best = top if PAGE == KEYS else tl.where(top > best, top, best)
    if BY_ROW:
        best = tl.where(best > _LEAST, best, _LEAST)
        if not PLAIN:
            behind_it = last - number.to(tl.float32)
            best = _with_priorities(best, number, behind_it, INIT_BLOCKS, LOCAL_BLOCKS)
    return best


@triton.jit
def _columns_up_to(block, block_stride, to_column):
    """Columns of the unit with blocks up to ``block``, which counts from the first column's."""
    count = tl.where(block >= 0, block // block_stride + 1, 0)
    return tl.where(count < to_column, count, to_column)


@triton.jit
def _block_scores_kernel(
    query_ptr,
    key_ptr,
    table_ptr,
    request_ptr,
    position_ptr,
    last_ptr,
    out_ptr,
    rows,
    columns,
    first_block,
    block_stride,
    columns_per_unit,
    runs,
    table_stride,
    key_block_stride,
    key_row_stride,
    programs,
    STEP: tl.constexpr,
    TURNS: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BY_ROW: tl.constexpr,
    INIT_BLOCKS: tl.constexpr,
    LOCAL_BLOCKS: tl.constexpr,
):
    # What is not among the latest blocks of a row is seen whole.
    LATEST: tl.constexpr = LOCAL_BLOCKS if LOCAL_BLOCKS > 1 else 1
    # Of a single query other blocks than plain ones need no products.
    APART: tl.constexpr = not BY_ROW or (TURNS == 1 and LOCAL_BLOCKS > 0)
    h = tl.arange(0, ROWS)
    d = tl.arange(0, PADDED)
    c = tl.arange(0, COLUMNS)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        tile = unit // runs
        from_column = (unit - tile * runs) * columns_per_unit
        to_column = from_column + columns_per_unit
        to_column = tl.where(to_column < columns, to_column, columns)
        first = tile * STEP
        left = tl.where(rows - first < STEP, rows - first, STEP)
        start = as_int64(first)
        query = tl.load(
            query_ptr + start * DIM + h[:, None] * DIM + d[None, :],
            mask=(h < left)[:, None] & (d < DIM)[None, :],
            other=0.0,
        )
        # The position of a row, and the last block that it sees; -1 both for padding.
        place = tl.load(position_ptr + start + h, mask=h < left, other=-1).to(tl.float32)
        last = tl.load(last_ptr + start + h, mask=h < left, other=-1).to(tl.float32)
        done = 0
        while done < left:
            # The turn of one request: rows `done` to `end`, of which one sees the most blocks, and
            # one the least. It is found one query after the other: what a vector core finds, it
            # would have to hand over to the matrix core.
            at = first + done
            request = tl.load(request_ptr + at)
            most = tl.load(last_ptr + at)
            least = most
            end = left
            if TURNS > 1:
                end = done + HEADS
                going = 1
                for query_number in range(done // HEADS + 1, left // HEADS):
                    at = first + query_number * HEADS
                    going = tl.where(tl.load(request_ptr + at) == request, going, 0)
                    end = tl.where(going > 0, (query_number + 1) * HEADS, end)
                    reach = tl.load(last_ptr + at)
                    most = tl.where((going > 0) & (reach > most), reach, most)
                    least = tl.where((going > 0) & (reach < least), reach, least)
            # Masks are written out at every store: on a shared one the compiler crashes at times.
            table = table_ptr + as_int64(request) * table_stride
            out = out_ptr + start * columns + h * columns
            # Columns in front of `live` hold blocks that one of the rows sees; between `plain` and
            # `whole` are those that all see whole, and whose scores are what they are.
            live = _columns_up_to(most - first_block, block_stride, to_column)
            whole = _columns_up_to(least - LATEST - first_block, block_stride, to_column)
            plain = from_column
            if INIT_BLOCKS > 0:
                taken = _columns_up_to(INIT_BLOCKS - 1 - first_block, block_stride, to_column)
                plain = tl.where(taken > plain, taken, plain)
            whole = tl.where(whole > plain, whole, plain)
            if APART:
                for column in range(plain, whole):
                    best = _largest(
                        query, key_ptr, table, first_block + column * block_stride, place, last,
                        key_block_stride, key_row_stride, DIM, PADDED, PAGE, KEYS, True, BY_ROW,
                        0, 0,
                    )  # fmt: skip
                    tl.store(out + column, best, mask=(h >= done) & (h < end))
            else:
                whole = plain
            for one in range(from_column, live - (whole - plain)):
                column = tl.where(one < plain, one, one + whole - plain)
                number = first_block + column * block_stride
                if TURNS == 1 and LOCAL_BLOCKS > 0:
                    # A single query takes every such block anyway.
                    score = tl.where(number > most - LOCAL_BLOCKS, _LOCAL, _INIT)
                    best = tl.full((ROWS,), score, tl.float32)
                else:
                    best = _largest(
                        query, key_ptr, table, number, place, last, key_block_stride,
                        key_row_stride, DIM, PADDED, PAGE, KEYS, False, BY_ROW, INIT_BLOCKS,
                        LOCAL_BLOCKS,
                    )  # fmt: skip
                tl.store(out + column, best, mask=(h >= done) & (h < end))
            nothing = tl.full((ROWS, COLUMNS), float("-inf"), tl.float32)
            unseen = tl.where(live > from_column, live, from_column)
            for column in range(unseen, to_column, COLUMNS):
                tl.store(
                    out[:, None] + column + c[None, :],
                    nothing,
                    mask=((h >= done) & (h < end))[:, None] & (c < to_column - column)[None, :],
                )
            done = end


@triton.jit
def _best_blocks_kernel(
    scores_ptr,
    ids_ptr,
    chosen_ptr,
    values_ptr,
    rows,
    first_block,
    block_stride,
    programs,
    CANDIDATES: tl.constexpr,
    PADDED: tl.constexpr,
    TAKEN: tl.constexpr,
    KEPT: tl.constexpr,
    PADDED_KEPT: tl.constexpr,
    GIVEN: tl.constexpr,
):
    r = tl.arange(0, TAKEN)
    c = tl.arange(0, PADDED)
    k = tl.arange(0, PADDED_KEPT)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        first = as_int64(unit) * TAKEN
        real = r < rows - first
        mask = real[:, None] & (c < CANDIDATES)[None, :]
        at = first * CANDIDATES + r[:, None] * CANDIDATES + c[None, :]
        scores = tl.load(scores_ptr + at, mask=mask, other=float("-inf"))
        if GIVEN:
            ids = tl.load(ids_ptr + at, mask=mask, other=-1)
            scores = tl.where((ids >= 0) & (scores > float("-inf")), scores, float("-inf"))
        else:
            scores = tl.where(scores > float("-inf"), scores, float("-inf"))
            ids = tl.broadcast_to(c[None, :], (TAKEN, PADDED))
        chosen = tl.full((TAKEN, PADDED_KEPT), -1, tl.int32)
        values = tl.full((TAKEN, PADDED_KEPT), float("-inf"), tl.float32)
        for place in range(KEPT):
            top = tl.max(scores, axis=1)
            number = tl.min(tl.where(scores == top[:, None], ids, _NO_BLOCK), axis=1)
            scores = tl.where(ids == number[:, None], float("-inf"), scores)
            here = (k == place)[None, :] & (top > float("-inf"))[:, None]
            chosen = tl.where(here, number[:, None], chosen)
            values = tl.where(here, top[:, None], values)
        if not GIVEN:
            chosen = tl.where(chosen >= 0, first_block + chosen * block_stride, -1)
        to = first * KEPT + r[:, None] * KEPT + k[None, :]
        stored = real[:, None] & (k < KEPT)[None, :]
        tl.store(chosen_ptr + to, chosen, mask=stored)
        tl.store(values_ptr + to, values, mask=stored)


def block_scores(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    columns: int,
    first_block: int,
    block_stride: int,
    init_blocks: int,
    local_blocks: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.block_selection.block_scores`."""
    tokens, heads, width = query.shape
    page, device = key_cache.shape[1], query.device
    out = torch.empty((tokens, heads, columns), dtype=torch.float32, device=device)
    if not columns or not heads:
        return out
    if not block_table.numel() or not key_cache.numel():
        return out.fill_(float("-inf"))
    facts = current_facts()
    # Requests of fewer queries on average would take turns over rows that are not theirs.
    by_row = facts.family == "A5"
    most = _MOST_ROWS if local_blocks and not init_blocks else _MOST_ROWS_COMPARED
    if by_row and local_blocks:
        most = _MOST_ROWS_ALONE
    together = min(next_power_of_two(tokens // block_table.shape[0]), max(1, most // heads))
    step = together * heads
    tiles = -(-tokens // together)
    groups = -(-columns // _NARROWEST)
    runs = max(1, min(groups, _UNITS_PER_CORE * facts.cube_cores // max(tiles, 1)))
    columns_per_unit = -(-groups // runs) * _NARROWEST
    runs = -(-columns // columns_per_unit)
    programs = tiles * runs
    place = position.clamp(min=-1)
    last = torch.div(place, page, rounding_mode="floor")
    arguments = {
        "query_ptr": query.contiguous(),
        "key_ptr": key_cache,
        "table_ptr": block_table,
        # Padding may name any request, and reads nothing of it.
        "request_ptr": _per_row(torch.where(place >= 0, request, 0), heads),
        "position_ptr": _per_row(place, heads),
        "last_ptr": _per_row(last, heads),
        "out_ptr": out,
        "rows": tokens * heads,
        "columns": columns,
        "first_block": first_block,
        "block_stride": block_stride,
        "columns_per_unit": columns_per_unit,
        "runs": runs,
        "table_stride": block_table.stride(0),
        "key_block_stride": key_cache.stride(0),
        "key_row_stride": key_cache.stride(1),
        "programs": programs,
    }
    constants = {
        "STEP": step,
        "TURNS": together,
        "HEADS": heads,
        "ROWS": max(next_power_of_two(step), _FEWEST_ROWS),
        "DIM": width,
        "PADDED": max(next_power_of_two(width), _FEWEST_ROWS),
        "PAGE": page,
        "KEYS": min(page & -page, _MOST_KEYS),
        "COLUMNS": _COLUMNS,
        "BY_ROW": by_row,
        "INIT_BLOCKS": init_blocks,
        "LOCAL_BLOCKS": local_blocks,
    }
    launch(_block_scores_kernel, programs, arguments, constants, cube=True)
    return out


def _per_row(values: torch.Tensor, heads: int) -> torch.Tensor:
    """``[T * G]`` int32 of what is given for every query."""
    return values.int().repeat_interleave(heads)


def best_blocks(
    scores: torch.Tensor,
    ids: torch.Tensor | None,
    top_k: int,
    first_block: int,
    block_stride: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.block_selection.best_blocks`."""
    tokens, heads, candidates = scores.shape
    shape = (tokens, heads, top_k)
    chosen = torch.empty(shape, dtype=torch.int32, device=scores.device)
    values = torch.empty(shape, dtype=torch.float32, device=scores.device)
    if not candidates:
        return chosen.fill_(-1), values.fill_(float("-inf"))
    if candidates > _MOST_CANDIDATES:
        return best_of_parts(
            best_blocks, scores, ids, top_k, first_block, block_stride, _MOST_CANDIDATES
        )
    rows = tokens * heads
    padded = max(next_power_of_two(candidates), _NARROWEST)
    padded_kept = max(next_power_of_two(top_k), _NARROWEST)
    taken = tile_rows(
        current_facts(),
        padded,
        streamed=4 if ids is None else 8,
        local=_CANDIDATE_BYTES,
        per_row=padded_kept * _CANDIDATE_BYTES,
        maximum=min(_MOST_CHOOSING, next_power_of_two(rows)),
    )
    programs = -(-rows // taken)
    arguments = {
        "scores_ptr": scores.contiguous(),
        "ids_ptr": None if ids is None else ids.contiguous(),
        "chosen_ptr": chosen,
        "values_ptr": values,
        "rows": rows,
        "first_block": first_block,
        "block_stride": block_stride,
        "programs": programs,
    }
    constants = {
        "CANDIDATES": candidates,
        "PADDED": padded,
        "TAKEN": taken,
        "KEPT": top_k,
        "PADDED_KEPT": padded_kept,
        "GIVEN": ids is not None,
    }
    launch(_best_blocks_kernel, programs, arguments, constants)
    return chosen, values
