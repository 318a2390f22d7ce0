"""MiniMax-M3's index branch: which blocks of its context a query attends to.

A block is a page of the caches. Every index head scores the blocks that its query sees, the first
and the latest ones are taken whatever their scores, and the best ``top_k`` are kept. Index head
``g`` chooses for key-value head ``g`` and all query heads that share it.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_at_least, require_dtype, require_shape
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.block_selection import per_request, reference

_cpu = CpuKernels("ascend_attention.ops.block_selection.cpu")

# Scores of one round, in elements: bounds the memory of long contexts.
_MOST_SCORES = 1 << 24

__all__ = ["best_blocks", "block_scores", "select_blocks"]


def select_blocks(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    top_k: int,
    *,
    init_blocks: int = 0,
    local_blocks: int = 1,
    most_tokens: int | None = None,
) -> torch.Tensor:
    """The blocks of its request that every query attends to: :func:`block_scores`, then the best.

    Args:
        query: ``[T, G, D]``, see :func:`block_scores`.
        key_cache: ``[B, P, D]``.
        block_table: ``[R, nb]`` int32.
        request: ``[T]``.
        position: ``[T]``.
        top_k: ``K``, most blocks of a query, at least 1.
        init_blocks: blocks from the beginning that are taken first.
        local_blocks: blocks up to the query's own that are taken next.
        most_tokens: a bound that the host knows for the longest context, which sets the width of
            the scores. Left out, it is what a row of ``block_table`` can address.

    Returns:
        ``[T, G, K]`` int32 numbers of blocks within the query's request: best first, among equals
        the lower number, then -1.

    Raises:
        InvalidInputError: another shape or dtype, or a bound beyond the table.
    """
    require_at_least("top_k", top_k, 1)
    require_shape("key_cache", key_cache, None, None, None)
    require_shape("block_table", block_table, None, None)
    columns = columns_of(block_table, key_cache.shape[1], most_tokens)
    tokens = query.shape[0]
    tile = max(1, _MOST_SCORES // max(1, query.shape[1] * columns))
    rounds = []
    for start in range(0, max(tokens, 1), tile):
        part = slice(start, start + tile)
        scores = block_scores(
            query[part],
            key_cache,
            block_table,
            request[part],
            position[part],
            columns,
            init_blocks=init_blocks,
            local_blocks=local_blocks,
        )
        rounds.append(best_blocks(scores, top_k)[0])
    return rounds[0] if len(rounds) == 1 else torch.cat(rounds)


def columns_of(block_table: torch.Tensor, page: int, most_tokens: int | None) -> int:
    """Blocks that a context of ``most_tokens`` takes, at most those of the table.

    Raises:
        InvalidInputError: a bound beyond the table.
    """
    reach = block_table.shape[1] * page
    if most_tokens is None:
        return block_table.shape[1]
    if not 0 <= most_tokens <= reach:
        raise InvalidInputError(
            f"most_tokens={most_tokens}",
            f"{block_table.shape[1]} blocks of {page} rows hold 0 to {reach}",
            "Pass the longest context, or a wider table.",
        )
    return -(-most_tokens // page)


def block_scores(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    columns: int,
    *,
    first_block: int = 0,
    block_stride: int = 1,
    init_blocks: int = 0,
    local_blocks: int = 1,
) -> torch.Tensor:
    """What every block of its request is worth to a query.

    Block ``j`` holds tokens ``j * P`` to ``(j + 1) * P - 1``. A query at position ``p`` sees the
    ``n = p // P + 1`` blocks up to its own, and of the last one the tokens up to itself. The score
    of a block is the largest product of the query with one of its keys that the query sees, in
    float32; it is at least -1e30, which a product that is NaN does not pass. Of the blocks that
    are seen, the last ``local_blocks`` get 1e29 instead, and of the others the first
    ``init_blocks`` get 1e30. No factor is applied, since only the order matters.

    Args:
        query: ``[T, G, D]``, normed and rotated, float32, bfloat16 or float16; ``T`` may be 0.
        key_cache: ``[B, P, D]`` paged index keys of the same dtype, any strides of blocks and
            rows. What lies behind a request's last token has no influence.
        block_table: ``[R, nb]`` int32, blocks of every request in order.
        request: ``[T]`` int32 or int64, the request of every query.
        position: ``[T]`` int32 or int64, its index within the request; negative for padding,
            which sees nothing.
        columns: ``W``, blocks to score.
        first_block: number of the block in column 0.
        block_stride: from one column to the next, at least 1: ranks that share the blocks of a
            context take every ``block_stride``-th.
        init_blocks: blocks from the beginning that are taken first.
        local_blocks: blocks up to the query's own that are taken next.

    Returns:
        ``[T, G, W]`` float32; -inf where a block is not seen.

    Raises:
        InvalidInputError: another shape or dtype.
        IndexError: on a CPU, a position outside the table.

    Source: MiniMax-M3's ``sparse_attention_config`` (score type "max"); vLLM's
    ``models/minimax_m3/common/ops/index_topk.py`` for the order of priorities and NaN.
    """
    require_dtype("query", query, FLOATS)
    require_shape("query", query, None, None, None)
    require_dtype("key_cache", key_cache, (query.dtype,))
    require_shape("key_cache", key_cache, None, None, query.shape[2])
    require_dtype("block_table", block_table, (torch.int32,))
    require_shape("block_table", block_table, None, None)
    for name, index in (("request", request), ("position", position)):
        require_shape(name, index, query.shape[0])
        require_dtype(name, index, INDICES)
    for name, value, least in (
        ("rows of a block", key_cache.shape[1], 1),
        ("columns", columns, 0),
        ("first_block", first_block, 0),
        ("block_stride", block_stride, 1),
        ("init_blocks", init_blocks, 0),
        ("local_blocks", local_blocks, 0),
    ):
        require_at_least(name, value, least)
    result: torch.Tensor = _BLOCK_SCORES(
        query,
        key_cache,
        block_table,
        request,
        position,
        columns,
        first_block,
        block_stride,
        init_blocks,
        local_blocks,
    )
    return result


def best_blocks(
    scores: torch.Tensor,
    top_k: int,
    *,
    ids: torch.Tensor | None = None,
    first_block: int = 0,
    block_stride: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The candidates with the largest scores, best first; among equals the lower number.

    Args:
        scores: ``[T, G, N]`` float32; -inf and NaN where there is no candidate.
        top_k: ``K``, at least 1.
        ids: ``[T, G, N]`` int32 numbers of the candidates in any order, below 2^24 and different
            from each other; negative where there is none. Left out, column ``c`` is block
            ``first_block + c * block_stride``.
        first_block: number of the block in column 0.
        block_stride: from one column to the next.

    Returns:
        ``[T, G, K]`` int32 and ``[T, G, K]`` float32: numbers and scores, then -1 and -inf.

    Raises:
        InvalidInputError: another shape or dtype.
    """
    require_dtype("scores", scores, (torch.float32,))
    require_shape("scores", scores, None, None, None)
    require_at_least("top_k", top_k, 1)
    require_at_least("first_block", first_block, 0)
    require_at_least("block_stride", block_stride, 1)
    if ids is not None:
        require_dtype("ids", ids, (torch.int32,))
        require_shape("ids", ids, *scores.shape)
    result: tuple[torch.Tensor, torch.Tensor] = _BEST_BLOCKS(
        scores, ids, top_k, first_block, block_stride
    )
    return result


def _block_scores_cpu(
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
    kernels = _cpu.usable(query, key_cache)
    run = per_request.block_scores
    if kernels is not None and kernels.supports(query, key_cache, columns):
        run = kernels.block_scores
    return run(
        query,
        key_cache,
        block_table,
        request,
        position,
        columns,
        first_block,
        block_stride,
        init_blocks,
        local_blocks,
    )


def _best_blocks_cpu(
    scores: torch.Tensor,
    ids: torch.Tensor | None,
    top_k: int,
    first_block: int,
    block_stride: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    kernels = _cpu.usable(scores, ids)
    run = reference.best_blocks if kernels is None else kernels.best_blocks
    return run(scores, ids, top_k, first_block, block_stride)


def _fake_scores(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    columns: int,
    *rest: int,
) -> torch.Tensor:
    return query.new_empty((*query.shape[:2], columns), dtype=torch.float32)


def _fake_best(
    scores: torch.Tensor, ids: torch.Tensor | None, top_k: int, *rest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (*scores.shape[:2], top_k)
    return scores.new_empty(shape, dtype=torch.int32), scores.new_empty(shape)


_BLOCK_SCORES = declare(
    __name__,
    "block_scores(Tensor query, Tensor key_cache, Tensor block_table, Tensor request, "
    "Tensor position, int columns, int first_block, int block_stride, int init_blocks, "
    "int local_blocks) -> Tensor",
    npu=("triton", "torch"),
    fake=_fake_scores,
    cpu=_block_scores_cpu,
)

_BEST_BLOCKS = declare(
    __name__,
    "best_blocks(Tensor scores, Tensor? ids, int top_k, int first_block, int block_stride) "
    "-> (Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=_fake_best,
    cpu=_best_blocks_cpu,
)
