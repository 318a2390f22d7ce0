"""Token ids of a vocabulary that is split over several ranks."""

from __future__ import annotations

import torch

from ascend_ops_core.checks import INDICES, require_dtype
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["mask_vocab_range"]


def mask_vocab_range(
    ids: torch.Tensor,
    org_start: int,
    org_end: int,
    org_padding: int,
    added_start: int,
    added_end: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of this rank's part of the embedding, and which ids it does not hold.

    The part holds ``org_end - org_start`` rows of the vocabulary, ``org_padding`` rows that no id
    names, and ``added_end - added_start`` rows of added tokens (vLLM's layout,
    ``VocabParallelEmbeddingShardIndices``).

    Args:
        ids: any shape, int32 or int64, below 2^31; any of its axes may be 0. Ids outside of the
            vocabulary, such as the -1 of a padding row, are held by no rank.
        org_start: first id of the vocabulary held here.
        org_end: the id after the last one.
        org_padding: rows of padding behind them.
        added_start: first added id held here.
        added_end: the id after the last one.

    Returns:
        The rows, of ``ids``' shape and dtype, 0 where the id is not held; and bool of the same
        shape, true where it is not held.

    Raises:
        InvalidInputError: another dtype, a range that ends before it starts, or ranges that
            overlap.
    """
    require_dtype("ids", ids, INDICES)
    if not (0 <= org_start <= org_end and 0 <= added_start <= added_end and org_padding >= 0):
        raise InvalidInputError(
            f"ranges [{org_start}, {org_end}) with {org_padding} rows of padding and "
            f"[{added_start}, {added_end})",
            "a range starts at 0 or later and ends where it starts or later",
            "Check the shard's indices.",
        )
    if max(org_start, added_start) < min(org_end, added_end):
        raise InvalidInputError(
            f"ranges [{org_start}, {org_end}) and [{added_start}, {added_end})",
            "an id has one row",
            "Added tokens come after the vocabulary.",
        )
    rows, missing = _MASK(ids, org_start, org_end, org_padding, added_start, added_end)
    return rows, missing


_MASK = declare(
    __name__,
    "mask_vocab_range(Tensor ids, int org_start, int org_end, int org_padding, int added_start, "
    "int added_end) -> (Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=lambda ids, *ranges: (
        torch.empty_like(ids, memory_format=torch.contiguous_format),
        torch.empty(ids.shape, dtype=torch.bool, device=ids.device),
    ),
)
