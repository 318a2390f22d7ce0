"""What ranks exchange that share a context: results with their logarithms, and indices.

A rank attends with the query heads of all ranks to the rows that it has, and the results of a head
are merged on the rank that the head belongs to. They travel with the logarithms of their softmax's
denominators in one buffer, so that a layer needs one all-to-all.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, require_at_least, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.context_shard import ContextShard
from ascend_attention.ops.context_parallel.layout import packed_words

__all__ = ["local_tokens", "merge_packed_states", "pack_attention_states", "packed_words"]


def pack_attention_states(outs: torch.Tensor, lses: torch.Tensor, ranks: int) -> torch.Tensor:
    """Results and logarithms, part by part for the ranks that their heads belong to.

    Args:
        outs: ``[T, P * H, D]`` over the rows of this rank, float32, bfloat16 or float16; ``T`` may
            be 0. The heads of rank ``p`` are ``p * H`` to ``(p + 1) * H - 1``.
        lses: ``[T, P * H]`` float32, natural logarithms; ``-inf`` where this rank has no row.
        ranks: ``P``.

    Returns:
        ``[P, T, H, packed_words(D)]`` int32: the bits of a result's values, zeros up to the next
        word, then those of its logarithm.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other, or heads that the ranks
            cannot share evenly.
    """
    require_dtype("outs", outs, FLOATS)
    require_shape("outs", outs, None, None, None)
    require_dtype("lses", lses, (torch.float32,))
    require_shape("lses", lses, *outs.shape[:2])
    require_at_least("ranks", ranks, 1)
    if outs.shape[1] % ranks:
        raise InvalidInputError(
            f"{outs.shape[1]} heads for {ranks} ranks",
            "every rank has the same number of heads",
            "Gather the heads of all ranks first.",
        )
    packed: torch.Tensor = _PACK(outs, lses, ranks)
    return packed


def merge_packed_states(
    packed: torch.Tensor, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over a whole context from the packed results of the ranks that share it.

    :func:`ascend_attention.ops.attention_states.merge_attention_states` of what
    :func:`pack_attention_states` packed on every rank.

    Args:
        packed: ``[P, T, H, packed_words(D)]`` int32, contiguous, a part of every rank; ``T`` may
            be 0. Of a part whose logarithm is ``-inf`` no value is read.
        width: ``D``.
        dtype: of the values, float32, bfloat16 or float16.

    Returns:
        ``[T, H, D]`` in ``dtype``, and ``[T, H]`` float32; zeros and ``-inf`` where no rank has a
        row.

    Raises:
        InvalidInputError: another shape or dtype, or no part at all.
    """
    if dtype not in FLOATS:
        raise InvalidInputError(
            f"dtype={dtype}", "values are float32, bfloat16 or float16", "Pass the results' dtype."
        )
    require_dtype("packed", packed, (torch.int32,))
    require_shape("packed", packed, None, None, None, packed_words(width, dtype))
    require_at_least("parts", packed.shape[0], 1)
    result: tuple[torch.Tensor, torch.Tensor] = _MERGE(packed, width, dtype)
    return result


def local_tokens(selected: torch.Tensor, shard: ContextShard, places: int) -> torch.Tensor:
    """Rows of this rank among the tokens that queries selected of a whole context.

    Args:
        selected: ``[T, K]`` int32 token numbers within the query's request, each at most once; -1
            marks unused places. ``T`` and ``K`` may be 0.
        shard: which tokens lie here.
        places: columns of the result, no more than ``K``; no query may have selected more tokens
            that lie here.

    Returns:
        ``[T, places]`` int32, rows in ascending order, then -1.

    Raises:
        InvalidInputError: another shape or dtype, or more places than there are.
    """
    require_dtype("selected", selected, (torch.int32,))
    require_shape("selected", selected, None, None)
    if not 0 <= places <= selected.shape[1]:
        raise InvalidInputError(
            f"places={places}", f"{selected.shape[1]} tokens are selected", "Use at most so many."
        )
    rows: torch.Tensor = _LOCAL_TOKENS(selected, shard.ranks, shard.rank, shard.interleave, places)
    return rows


def _fake_pack(outs: torch.Tensor, lses: torch.Tensor, ranks: int) -> torch.Tensor:
    tokens, heads, width = outs.shape
    words = packed_words(width, outs.dtype)
    return outs.new_empty((ranks, tokens, heads // ranks, words), dtype=torch.int32)


def _fake_merge(
    packed: torch.Tensor, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = packed.shape[1:3]
    return (
        packed.new_empty((*shape, width), dtype=dtype),
        packed.new_empty(shape, dtype=torch.float32),
    )


_PACK = declare(
    __name__,
    "pack_attention_states(Tensor outs, Tensor lses, int ranks) -> Tensor",
    npu=("triton", "torch"),
    fake=_fake_pack,
)
_MERGE = declare(
    __name__,
    "merge_packed_states(Tensor packed, int width, ScalarType dtype) -> (Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=_fake_merge,
)
_LOCAL_TOKENS = declare(
    __name__,
    "local_tokens(Tensor selected, int ranks, int rank, int interleave, int places) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda selected, ranks, rank, interleave, places: selected.new_empty(
        (selected.shape[0], places)
    ),
)
