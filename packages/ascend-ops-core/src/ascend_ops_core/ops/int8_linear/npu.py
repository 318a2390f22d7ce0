"""Products of int8 by torch_npu, and their limits.

Limits are those of torch_npu's documentation of ``npu_quant_matmul``. Not run on hardware; checked
against torch_npu's schemas.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_OP = "npu_quant_matmul"
_CODES = {torch.float16: 5, torch.bfloat16: 15}
_FAMILIES = ("A2", "A3")
_MOST = 65535


def int8_linear(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """``npu_quant_matmul`` with the scale of each token."""
    result: torch.Tensor = torch.ops.npu.npu_quant_matmul(
        x, weight.T, weight_scale, pertoken_scale=x_scale, output_dtype=_CODES[dtype]
    )
    return result


def supports_int8_linear(
    facts: DeviceFacts,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    dtype: torch.dtype,
) -> Support:
    """A2 and A3; a result of 16 bits; sizes up to 65535 (documentation)."""
    return first_refusal(
        (
            facts.family in _FAMILIES,
            f"{facts.family}, {_OP} with scales of tokens is documented for {', '.join(_FAMILIES)}",
        ),
        (dtype in _CODES, f"to {dtype}, {_OP} gives float16 and bfloat16"),
        *(
            (size <= _MOST, f"{size} {what}, {_OP} takes at most {_MOST}")
            for size, what in ((x.shape[1], "columns"), (weight.shape[0], "rows of a weight"))
        ),
        (x.numel() > 0 and weight.numel() > 0, "x or weight is empty"),
    )
