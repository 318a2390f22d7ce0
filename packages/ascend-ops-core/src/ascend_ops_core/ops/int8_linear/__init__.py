"""Products of int8 tokens with int8 weights, both scaled afterwards (W8A8)."""

from __future__ import annotations

import torch

from ascend_ops_core.checks import require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.quantization.formats import check_result
from ascend_ops_core.registry import declare

__all__ = ["int8_linear"]

_MOST_TERMS = 131072


def int8_linear(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """``(x @ weight.T) * x_scale * weight_scale``; the sums are exact.

    Args:
        x: ``[T, K]`` int8, as :func:`ascend_ops_core.ops.quantization.dynamic_quantize` gives it;
            ``T`` may be 0. ``K`` is at most 131072, so that sums fit into 32 bits.
        x_scale: ``[T]`` float32.
        weight: ``[N, K]`` int8.
        weight_scale: ``[N]`` float32.
        dtype: of the result: float32, bfloat16 or float16.

    Returns:
        ``[T, N]`` in ``dtype``, rounded once.

    Raises:
        InvalidInputError: dtypes or shapes that do not fit each other.
    """
    check_result(dtype)
    require_shape("x", x, None, None)
    require_shape("weight", weight, None, x.shape[1])
    require_shape("x_scale", x_scale, x.shape[0])
    require_shape("weight_scale", weight_scale, weight.shape[0])
    for name, one, wanted in (
        ("x", x, torch.int8),
        ("weight", weight, torch.int8),
        ("x_scale", x_scale, torch.float32),
        ("weight_scale", weight_scale, torch.float32),
    ):
        if one.dtype != wanted:
            raise InvalidInputError(f"{name} of {one.dtype}", f"it is {wanted}", "Quantise it.")
    if x.shape[1] > _MOST_TERMS:
        raise InvalidInputError(
            f"rows of {x.shape[1]} columns",
            f"sums of more than {_MOST_TERMS} products do not fit int32",
            "Split the weight.",
        )
    if x.shape[0] == 0:
        return torch.empty((0, weight.shape[0]), dtype=dtype, device=x.device)
    result: torch.Tensor = _INT8_LINEAR(x, x_scale, weight, weight_scale, dtype)
    return result


_INT8_LINEAR = declare(
    __name__,
    "int8_linear(Tensor x, Tensor x_scale, Tensor weight, Tensor weight_scale, ScalarType dtype)"
    " -> Tensor",
    npu=("torch_npu", "torch"),
    fake=lambda x, x_scale, weight, weight_scale, dtype: torch.empty(
        (x.shape[0], weight.shape[0]), dtype=dtype, device=x.device
    ),
)
