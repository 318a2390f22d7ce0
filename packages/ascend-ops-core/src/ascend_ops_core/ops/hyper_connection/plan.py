"""What a collapse of the streams leaves for their expansion."""

from __future__ import annotations

from typing import NamedTuple

import torch


class HyperConnectionPlan(NamedTuple):
    """How a block's output returns to the streams.

    Attributes:
        post: ``[T, n]`` float32, weight of the output in every stream.
        comb: ``[T, n, n]`` float32, doubly stochastic; stream ``j`` flows into ``k`` by
            ``comb[:, j, k]``.
    """

    post: torch.Tensor
    comb: torch.Tensor
