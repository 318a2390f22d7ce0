"""Quantises matrices to MXFP4 as compressed-tensors packs them (`mxfp4-pack-quantized`)."""

from __future__ import annotations

import torch

GROUP = 32
"""Columns that share a scale."""

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes by code; the highest of a code's four bits is the sign."""


def pack_mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `[N, K / 2]` uint8 codes, the even column in the low bits, and `[N, K / 32]` E8M0.

    Args:
        weight: `[N, K]` float; `K` a multiple of 32.
    """
    groups = weight.double().unflatten(-1, (-1, GROUP))
    # The largest magnitude of a group, 6 at most after the division, decides its power of two.
    exponent = (groups.abs().amax(-1).clamp(min=2.0**-120) / 6).log2().ceil()
    scaled = groups / exponent.exp2().unsqueeze(-1)
    levels = torch.tensor(E2M1, dtype=torch.float64)
    codes = (scaled.abs().unsqueeze(-1) - levels).abs().argmin(-1)
    codes = (codes + 8 * (scaled < 0)).flatten(-2).to(torch.uint8)
    return codes[:, 0::2] | (codes[:, 1::2] << 4), (exponent + 127).to(torch.uint8)


def unpack_mxfp4(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the `[N, K]` float64 values of what `pack_mxfp4` returns."""
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).long()
    levels = torch.tensor(E2M1, dtype=torch.float64)
    values = levels[codes % 8] * torch.where(codes >= 8, -1.0, 1.0)
    powers = (scale.double() - 127).exp2().repeat_interleave(GROUP, dim=-1)
    return values * powers
