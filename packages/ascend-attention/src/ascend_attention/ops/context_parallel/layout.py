"""How a result and its logarithm lie in one row of 32-bit words."""

from __future__ import annotations

import torch

_WORD = 4


def packed_words(width: int, dtype: torch.dtype) -> int:
    """Words of a row: those that ``width`` values take, and one for the logarithm."""
    return -(-width * dtype.itemsize // _WORD) + 1


def packed_views(
    packed: torch.Tensor, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values ``[..., width]`` and float32 logarithms ``[...]`` in int32 rows ``[..., words]``."""
    return packed.view(dtype)[..., :width], packed.view(torch.float32)[..., -1]
