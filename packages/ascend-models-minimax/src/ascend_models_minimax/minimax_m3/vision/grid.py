"""Where the patches of images and videos lie: positions, segments, and their rotation.

A grid is ``(t, h, w)`` patches; an image has one temporal patch. Patches come in the order in
which they are merged: temporal patches one after the other, in each of them windows of merged
patches row by row, and in a window its patches row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.errors import InvalidInputError

Grid = tuple[int, int, int]


def segments(grids: Sequence[Grid], most_frames: int | None) -> list[Grid]:
    """The parts of grids whose patches attend to each other: runs of temporal patches.

    Args:
        grids: of images and videos.
        most_frames: temporal patches of a segment; None for all.
    """
    if most_frames is None:
        return list(grids)
    return [
        (min(most_frames, frames - first), height, width)
        for frames, height, width in grids
        for first in range(0, frames, most_frames)
    ]


def patch_positions(grid: Grid, merge: int) -> torch.Tensor:
    """``[t * h * w, 3]`` int64: time, row and column of every patch.

    Args:
        grid: one segment.
        merge: patches of a window's side.

    Raises:
        InvalidInputError: a height or width that windows do not divide.
    """
    frames, height, width = grid
    if height % merge or width % merge:
        raise InvalidInputError(
            f"a grid of {frames} x {height} x {width} patches",
            f"windows of {merge} x {merge} patches are merged",
            "Resize images to a multiple of the window.",
        )
    axes = [torch.arange(size) for size in (frames, height, width)]
    place = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    windows = place.view(frames, height // merge, merge, width // merge, merge, 3)
    return windows.transpose(2, 3).reshape(-1, 3)


def rotation(
    parts: Sequence[Grid], merge: int, axis_dim: int, theta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine ``[N, 3 * axis_dim / 2]`` float32 of all patches of all segments.

    Time starts anew in every segment. The angles of time come first, then those of rows, then
    those of columns, each with the same frequencies.

    Args:
        parts: the segments.
        merge: patches of a window's side.
        axis_dim: rotated channels of an axis.
        theta: base of the frequencies.
    """
    place = torch.cat([patch_positions(part, merge) for part in parts]).float()
    exponent = torch.arange(0, axis_dim, 2, dtype=torch.float32) / axis_dim
    angle = (place.unsqueeze(-1) / theta**exponent).flatten(1)
    return angle.cos(), angle.sin()
