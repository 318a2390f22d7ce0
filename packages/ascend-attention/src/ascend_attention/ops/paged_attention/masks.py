"""The mask that torch_npu's fused operators take for causal attention of any size."""

from __future__ import annotations

from functools import cache

import torch

_SIZE = 2048


@cache
def causal_mask(device: torch.device) -> torch.Tensor:
    """``[2048, 2048]`` bool, true for what a query does not see; kept for each device."""
    return torch.ones(_SIZE, _SIZE, dtype=torch.bool, device=device).triu(1)
