"""What lies where in a quantised row of MLA: arithmetic, and the refusal of other rows."""

from __future__ import annotations

import torch
from ascend_ops_core.errors import InvalidInputError

GROUP = 128
"""Values of a latent that share a scale."""


def row_bytes(latent: int, rope: int) -> int:
    """Bytes of a row: 656 for a latent of 512 values and 64 rotated ones.

    Args:
        latent: values that are stored in eight bits.
        rope: values that are stored in bfloat16.

    Raises:
        InvalidInputError: latents in other than whole groups, or an odd number of rotated values,
            behind which scales would not be aligned.
    """
    if latent < 1 or latent % GROUP or rope % 2:
        raise InvalidInputError(
            f"a quantised row of {latent} + {rope} values",
            f"latents are quantised in groups of {GROUP}, and rotated values come in pairs",
            "Keep the model's dtype in the caches.",
        )
    return latent + 2 * rope + 4 * (latent // GROUP)


def rotated_part(cache: torch.Tensor, latent: int, rope: int) -> torch.Tensor:
    """``[B, P, R]`` bfloat16 view of the rotated values."""
    return cache[..., latent : latent + 2 * rope].view(torch.bfloat16)


def scales_part(cache: torch.Tensor, latent: int, rope: int) -> torch.Tensor:
    """``[B, P, L / 128]`` float32 view of the scales."""
    return cache[..., latent + 2 * rope : row_bytes(latent, rope)].view(torch.float32)
