"""Products of MXFP8 values by torch_npu.

Not run on hardware; checked against torch_npu's schemas. The limits are those of the operator's
public documentation (op-plugin, ``npu_transpose_quant_batchmatmul``), since the wheel's is empty.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_OP = "npu_transpose_quant_batchmatmul"
_CODES = {torch.float16: 5, torch.bfloat16: 15}
_PAIR = 64  # columns of two scales, which torch_npu keeps together


def mxfp8_grouped_linear(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """``npu_transpose_quant_batchmatmul`` with weights ``[G, N, K]`` as they are stored."""
    result: torch.Tensor = torch.ops.npu.npu_transpose_quant_batchmatmul(
        x,
        weight,
        _CODES[dtype],
        x1_scale=_in_pairs(x_scale),
        x2_scale=_in_pairs(weight_scale),
        group_sizes=[0, 0, 32],
        perm_x1=[1, 0, 2],
        perm_x2=[0, 2, 1],
        perm_y=[1, 0, 2],
    )
    return result


def supports_mxfp8_grouped_linear(
    facts: DeviceFacts,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    dtype: torch.dtype,
) -> Support:
    """A5; whole pairs of blocks; a result of 16 bits (documentation)."""
    return first_refusal(
        (facts.family == "A5", f"{_OP} is documented for A5, not {facts.family}"),
        (
            x.shape[-1] % _PAIR == 0,
            f"x of {x.shape[-1]} columns, {_OP} takes multiples of {_PAIR}",
        ),
        (dtype in _CODES, f"to {dtype}, {_OP} gives float16 and bfloat16"),
        (x.numel() > 0, "x is empty"),
        (x.is_contiguous() and weight.is_contiguous(), "x or weight is not contiguous"),
    )


def _in_pairs(scale: torch.Tensor) -> torch.Tensor:
    """``[..., K / 64, 2]`` of powers of two."""
    return scale.contiguous().view(torch.float8_e8m0fnu).unflatten(-1, (-1, 2))
