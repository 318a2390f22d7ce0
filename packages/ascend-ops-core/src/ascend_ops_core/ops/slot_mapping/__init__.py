"""Where in a paged cache each token of a batch lies."""

from __future__ import annotations

import torch

from ascend_ops_core.checks import INDICES, require_at_least, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["PADDING_SLOT", "compute_slot_mapping"]

PADDING_SLOT = -1
"""The slot of tokens that are in no cache of this rank; writing to it changes nothing."""


def compute_slot_mapping(
    slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    *,
    ranks: int = 1,
    rank: int = 0,
    interleave: int = 1,
) -> None:
    """Fill ``slots`` with the slot of each token; -1 for padding and for tokens of other ranks.

    Token ``t`` of request ``r`` (``query_start_loc[r] <= t < query_start_loc[r + 1]``) at
    position ``x`` lies in slot ``block_table[r, x // block_size] * block_size + x % block_size``.
    With context parallelism an entry of the table stands for ``ranks * block_size`` positions,
    which go round the ranks ``interleave`` at a time, and a rank stores its own without gaps
    (vLLM: ``v1/worker/block_table.py: compute_slot_mapping``).

    Args:
        slots: ``[N]`` int32 or int64, contiguous, ``N`` at least the number of tokens; written as
            a whole. From ``query_start_loc[R]`` on it becomes -1, so that a batch padded for a
            captured graph writes nothing to the cache.
        query_start_loc: ``[R + 1]`` int32, ascending from 0; ``R`` may be 0.
        positions: ``[T]`` int32 or int64, at least ``query_start_loc[R]``. Within a request each
            is one more than the one before; kernels read only the first.
        block_table: at least ``[R, blocks]`` int32, rows without gaps.
        block_size: positions per block and rank, at least 1.
        ranks: of context parallelism.
        rank: this one.
        interleave: consecutive positions on one rank, a divisor of ``block_size``.

    Raises:
        InvalidInputError: another shape or dtype, or numbers that do not fit each other; nothing
            was written then.
    """
    require_shape("slots", slots, None)
    require_dtype("slots", slots, INDICES)
    require_shape("query_start_loc", query_start_loc, None)
    require_dtype("query_start_loc", query_start_loc, (torch.int32,))
    require_shape("positions", positions, None)
    require_dtype("positions", positions, INDICES)
    require_shape("block_table", block_table, None, None)
    require_dtype("block_table", block_table, (torch.int32,))
    require_at_least("block_size", block_size, 1)
    require_at_least("ranks", ranks, 1)
    require_at_least("interleave", interleave, 1)
    require_at_least("len(query_start_loc)", query_start_loc.shape[0], 1)
    require_at_least("rows of block_table", block_table.shape[0], query_start_loc.shape[0] - 1)
    if not slots.is_contiguous():
        raise InvalidInputError("slots with gaps", "it is contiguous", "Pass a whole buffer.")
    if not 0 <= rank < ranks:
        raise InvalidInputError(f"rank={rank}", f"it is 0 to {ranks - 1}", "Correct rank.")
    if block_size % interleave:
        raise InvalidInputError(
            f"interleave={interleave}", f"it divides block_size={block_size}", "Choose a divisor."
        )
    _COMPUTE_SLOT_MAPPING(
        slots, query_start_loc, positions, block_table, block_size, ranks, rank, interleave
    )


_COMPUTE_SLOT_MAPPING = declare(
    __name__,
    "compute_slot_mapping(Tensor(a!) slots, Tensor query_start_loc, Tensor positions, "
    "Tensor block_table, int block_size, int ranks, int rank, int interleave) -> ()",
    npu=("triton", "torch"),
    fake=lambda *args: None,
)
