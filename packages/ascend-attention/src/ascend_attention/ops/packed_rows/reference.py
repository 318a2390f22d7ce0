"""Definition of packed rows."""

from __future__ import annotations

import torch
from ascend_ops_core.ops.quantization.formats import (
    E8M0_BIAS,
    E8M0_NAN,
    e8m0_values,
    largest_magnitude,
    narrowed,
)

from ascend_attention.ops.packed_rows.layout import GROUP, groups_of


def quantize_kv_rows(
    packed: torch.Tensor,
    rows: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    rotary: int,
) -> None:
    """See :func:`ascend_attention.ops.packed_rows.quantize_kv_rows`."""
    real = (block >= 0) & (offset >= 0)
    records = _packed(rows[real].float(), rotary)
    packed[block[real].long(), offset[real].long(), : records.shape[1]] = records


def unpacked(packed: torch.Tensor, width: int, rotary: int) -> torch.Tensor:
    """``[..., width]`` float32 from ``[..., bytes]`` uint8: the inverse, as far as there is one."""
    quantised = width - rotary
    values = packed[..., :quantised].contiguous().view(torch.float8_e4m3fn).float()
    rotated = packed[..., quantised : width + rotary].contiguous().view(torch.bfloat16).float()
    codes = packed[..., width + rotary : width + rotary + groups_of(width, rotary)]
    scales = e8m0_values(codes).repeat_interleave(GROUP, -1)[..., :quantised]
    return torch.cat((values * scales, rotated), dim=-1)


def _packed(rows: torch.Tensor, rotary: int) -> torch.Tensor:
    """``[N, bytes]`` uint8, without the padding, of float32 ``[N, D]``."""
    quantised = rows.shape[1] - rotary
    short = groups_of(rows.shape[1], rotary) * GROUP - quantised
    groups = torch.nn.functional.pad(rows[:, :quantised], (0, short)).unflatten(1, (-1, GROUP))
    largest = largest_magnitude(groups, -1)
    # The largest value of the format is 448 = 0.875 * 2^9, and frexp gives fractions below 1.
    fraction, exponent = torch.frexp(largest)
    code = exponent - 9 + (fraction > 0.875).int() + E8M0_BIAS
    code = torch.where(largest == 0, 0, code).clamp(min=0)
    code = torch.where(largest.isinf(), E8M0_NAN, code)
    factor = torch.ldexp(torch.ones_like(largest), E8M0_BIAS - code)
    scaled = groups * torch.where(code == E8M0_NAN, 0.0, factor).unsqueeze(-1)
    values = narrowed(torch.where(scaled.isnan(), 0.0, scaled), torch.float8_e4m3fn)
    rotated = rows[:, quantised:].to(torch.bfloat16).contiguous()
    return torch.cat(
        (
            values.flatten(1)[:, :quantised].contiguous().view(torch.uint8),
            rotated.view(torch.uint8),
            code.to(torch.uint8),
        ),
        dim=1,
    )
