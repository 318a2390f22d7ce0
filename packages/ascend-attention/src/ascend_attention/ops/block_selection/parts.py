"""Selection from more candidates than are taken at once."""

from __future__ import annotations

from collections.abc import Callable

import torch

Selection = Callable[
    [torch.Tensor, torch.Tensor | None, int, int, int], tuple[torch.Tensor, torch.Tensor]
]


def best_of_parts(
    best_blocks: Selection,
    scores: torch.Tensor,
    ids: torch.Tensor | None,
    top_k: int,
    first_block: int,
    block_stride: int,
    part: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best of the best of each part.

    Args:
        best_blocks: what selects from one part; the others are its arguments.
        scores: ``[T, G, N]`` float32.
        ids: ``[T, G, N]`` int32, or None for columns.
        top_k: blocks to select.
        first_block: number of the block in column 0.
        block_stride: from one column to the next.
        part: most candidates of a part.

    Returns:
        Numbers and scores, both ``[T, G, top_k]``.
    """
    found = [
        best_blocks(
            scores[..., start : start + part],
            None if ids is None else ids[..., start : start + part],
            top_k,
            first_block + start * block_stride,
            block_stride,
        )
        for start in range(0, scores.shape[2], part)
    ]
    numbers, values = (torch.cat(parts, dim=-1) for parts in zip(*found, strict=True))
    return best_blocks(values, numbers, top_k, 0, 1)
