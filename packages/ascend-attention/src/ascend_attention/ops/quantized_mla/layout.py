"""What lies where in a quantised row of MLA: arithmetic, and the refusal of other rows."""

from __future__ import annotations

import torch
from ascend_ops_core.checks import require_dtype, require_shape
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


def check_cache(cache: torch.Tensor, latent: int, rope: int) -> None:
    """Refuse what is no cache of records.

    Args:
        cache: ``[B, P, row_bytes(latent, rope)]`` int8.
        latent: values that are stored in eight bits.
        rope: values that are stored in bfloat16.

    Raises:
        InvalidInputError: another shape, dtype or stride.
    """
    require_shape("cache", cache, None, None, row_bytes(latent, rope))
    require_dtype("cache", cache, (torch.int8,))
    strides = cache.stride()
    if strides[2] != 1 or strides[0] % 4 or strides[1] % 4 or cache.storage_offset() % 4:
        raise InvalidInputError(
            f"a cache with strides {strides} from byte {cache.storage_offset()}",
            "a row is a record without gaps, and its float32 scales are aligned to 4 bytes",
            "Give blocks and rows sizes in multiples of 4 bytes.",
        )
