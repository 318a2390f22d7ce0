"""Products of MXFP8 tokens with MXFP8 weights, a separate one for every group.

A5 only: its cube multiplies 8-bit floats and applies the scales of 32 values while it adds up.
Elsewhere the definition runs on a CPU, and other NPUs refuse. For one weight pass one group.
"""

from __future__ import annotations

import torch

from ascend_ops_core.checks import require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.quantization.formats import check_result
from ascend_ops_core.registry import declare

__all__ = ["mxfp8_grouped_linear"]

_BLOCK = 32


def mxfp8_grouped_linear(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """A separate product for every group, ``x[:, g] @ weight[g].T``, of MXFP8 values.

    Args:
        x: ``[T, G, K]`` float8_e4m3fn, ``K`` a multiple of 32; ``T`` may be 0. As
            :func:`ascend_ops_core.ops.quantization.mxfp8_quantize` returns it.
        x_scale: ``[T, G, K / 32]`` uint8, exponent plus 127.
        weight: ``[G, N, K]`` float8_e4m3fn.
        weight_scale: ``[G, N, K / 32]`` uint8.
        dtype: of the result: float32, bfloat16 or float16.

    Returns:
        ``[T, G, N]`` in ``dtype``; the sum runs in float32.

    Raises:
        InvalidInputError: dtypes or shapes that do not fit each other.
    """
    check_result(dtype)
    require_shape("x", x, None, None, None)
    tokens, groups, inner = x.shape
    require_shape("weight", weight, groups, None, inner)
    blocks = -(-inner // _BLOCK)
    require_shape("x_scale", x_scale, tokens, groups, blocks)
    require_shape("weight_scale", weight_scale, groups, weight.shape[1], blocks)
    if inner % _BLOCK or inner == 0:
        raise InvalidInputError(
            f"x of {inner} columns", f"blocks of {_BLOCK} fill a row", "Pad both with zeros."
        )
    for name, one, wanted in (
        ("x", x, torch.float8_e4m3fn),
        ("weight", weight, torch.float8_e4m3fn),
        ("x_scale", x_scale, torch.uint8),
        ("weight_scale", weight_scale, torch.uint8),
    ):
        if one.dtype != wanted:
            raise InvalidInputError(f"{name} of {one.dtype}", f"it is {wanted}", "Quantise it.")
    if tokens == 0:
        # torch_npu's product takes no empty tensor.
        return torch.empty((0, groups, weight.shape[1]), dtype=dtype, device=x.device)
    result: torch.Tensor = _MXFP8_GROUPED_LINEAR(x, x_scale, weight, weight_scale, dtype)
    return result


_MXFP8_GROUPED_LINEAR = declare(
    __name__,
    "mxfp8_grouped_linear(Tensor x, Tensor x_scale, Tensor weight, Tensor weight_scale, "
    "ScalarType dtype) -> Tensor",
    npu=("torch_npu",),
    fake=lambda x, x_scale, weight, weight_scale, dtype: torch.empty(
        (x.shape[0], x.shape[1], weight.shape[1]), dtype=dtype, device=x.device
    ),
)
