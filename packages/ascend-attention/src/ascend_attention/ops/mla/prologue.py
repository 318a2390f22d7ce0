"""Result of the prologue."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Prologue(NamedTuple):
    """What attention reads.

    Attributes:
        latent: ``[T, L]`` normed query latent.
        query: ``[T, h, D]`` normed and rotated.
        kv: ``[T, D]`` normed and rotated.
    """

    latent: torch.Tensor
    query: torch.Tensor
    kv: torch.Tensor
