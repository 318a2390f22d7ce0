"""Definition of the products with quantised weights."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ascend_ops_core.ops.quantization.formats import e2m1_values, e8m0_values

# Weights that are float32 at once.
_ELEMENTS = 1 << 22
_INT4_SIGN = 8


def dequantized_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    scale_rows: torch.Tensor | None,
    columns: int,
    first_column: int,
    codes: str,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.dequantized_linear.dequantized_linear`."""
    wide = x.float()
    rows = max(1, _ELEMENTS // x.shape[1])
    out = x.new_empty((x.shape[0], weight.shape[0]))
    for start in range(0, weight.shape[0], rows):
        part = slice(start, start + rows)
        own = scale[part] if scale_rows is None else scale[scale_rows[part].long()]
        tile = dequantized(weight[part], own, columns, first_column, codes)
        out[:, part] = F.linear(wide, tile).to(x.dtype)
    return out


def dequantized(
    weight: torch.Tensor, scale: torch.Tensor, columns: int, first_column: int, codes: str
) -> torch.Tensor:
    """Rows ``[..., N, K]`` in float32; ``scale [..., N, C]`` has a row for each of them."""
    values = code_values(weight, codes)
    factors = e8m0_values(scale) if scale.dtype == torch.uint8 else scale
    width = values.shape[-1]
    if columns:
        block = torch.arange(first_column, first_column + width, device=values.device) // columns
        factors = factors[..., block]
    return values * factors


def code_values(weight: torch.Tensor, codes: str) -> torch.Tensor:
    """What codes stand for, in float32."""
    if codes in ("float4_e2m1fn", "int4"):
        pairs = torch.stack((weight & 0xF, weight >> 4), dim=-1).flatten(-2)
        if codes == "float4_e2m1fn":
            return e2m1_values(pairs)
        signed = pairs.to(torch.int8)
        return (signed - ((signed & _INT4_SIGN) << 1)).float()
    return weight.float()
