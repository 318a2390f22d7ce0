"""Sequences of one length that follow each other, which one call of a batched operator takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from ascend_ops_core.errors import InvalidInputError


class Run(NamedTuple):
    """Sequences of one length.

    Attributes:
        first: number of the first one.
        sequences: how many.
        start: the first one's first token.
        length: tokens of each, at least 1.
    """

    first: int
    sequences: int
    start: int
    length: int


def equal_runs(ends: Sequence[int]) -> Iterator[Run]:
    """Runs of sequences, those without a token left out.

    Args:
        ends: where the tokens of each sequence end in a flat batch.
    """
    starts = [0, *ends]
    lens = [end - start for start, end in pairwise(starts)]
    first = 0
    for one in range(1, len(lens) + 1):
        if one == len(lens) or lens[one] != lens[first]:
            if lens[first]:
                yield Run(first, one - first, starts[first], lens[first])
            first = one


def require_lengths(
    block_table: torch.Tensor, query_ends: Sequence[int], seq_lens: Sequence[int]
) -> None:
    """Refuse lengths that are not one of each for every request of a block table, or none.

    Raises:
        InvalidInputError: there are more or fewer.
    """
    requests = block_table.shape[0]
    if len(query_ends) != len(seq_lens) or len(seq_lens) not in (0, requests):
        raise InvalidInputError(
            f"{len(query_ends)} query_ends and {len(seq_lens)} seq_lens",
            f"the block table has {requests} requests",
            "Pass one of each for every request, or neither.",
        )
