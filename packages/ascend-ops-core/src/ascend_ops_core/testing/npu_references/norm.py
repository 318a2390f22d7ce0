"""Norms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from ascend_ops_core.testing.npu_references.limits import (
    FLOATS,
    HALVES,
    require,
    require_contiguous,
    require_dtype,
    require_filled,
    require_rank,
    require_same,
)
from ascend_ops_core.testing.npu_references.registry import reference


@reference("npu_rms_norm", documented=())
def npu_rms_norm(
    self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x * rsqrt(mean(x^2) + epsilon) * gamma`` over gamma's dimensions, and the ``rsqrt``.

    Limits: float16, bfloat16, float32; gamma of the same dtype. The documentation gives gamma 2 to
    8 dimensions and then uses one of 1, so 1 to 8 are taken.

    Assumed: the second result is float32, with gamma's dimensions kept as 1, as the meta kernel
    has it.
    """
    op = "npu_rms_norm"
    require_dtype(op, "self", self, FLOATS)
    require_dtype(op, "gamma", gamma, (self.dtype,))
    require_rank(op, "self", self, 1, 8)
    dims = normalized_dims(op, self, gamma)
    normed, rstd = normalize(self.float(), dims, epsilon)
    return (normed * gamma.float()).to(self.dtype), rstd


@reference("npu_gemma_rms_norm", documented=("A2", "A3"))
def npu_gemma_rms_norm(
    self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x * rsqrt(mean(x^2) + epsilon) * (1 + gamma)``, and the ``rsqrt``.

    Limits: float16, bfloat16, float32; gamma of the same dtype; contiguous; not empty.

    Assumed: the formula, which the documentation does not give, is Gemma's. The second result is
    float32 as the meta kernel has it, where the documentation says the input's dtype.
    """
    op = "npu_gemma_rms_norm"
    require_dtype(op, "self", self, FLOATS)
    require_dtype(op, "gamma", gamma, (self.dtype,))
    require_contiguous(op, self=self, gamma=gamma)
    require_filled(op, self=self, gamma=gamma)
    dims = normalized_dims(op, self, gamma)
    normed, rstd = normalize(self.float(), dims, epsilon)
    return (normed * (1 + gamma.float())).to(self.dtype), rstd


@reference("npu_add_rms_norm", documented=())
def npu_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """RMS norm of ``x1 + x2``; returns it, the ``rsqrt`` and the sum.

    Assumed: all of it, the operator being undocumented: dtypes as :func:`npu_rms_norm`; the sum is
    rounded to its dtype before it is normalised.
    """
    op = "npu_add_rms_norm"
    require_dtype(op, "x1", x1, FLOATS)
    require_same(op, "x2", x2, x1)
    total = (x1.float() + x2.float()).to(x1.dtype)
    y, rstd = npu_rms_norm(total, gamma, epsilon)
    return y, rstd, total


@reference("npu_add_rms_norm_cast", documented=("A2", "A3"))
def npu_add_rms_norm_cast(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """As :func:`npu_add_rms_norm`, with the norm in float32 as well, which comes first.

    Limits: float16, bfloat16; not empty.

    Assumed: the float32 result is the rounded one, cast.
    """
    op = "npu_add_rms_norm_cast"
    require_dtype(op, "x1", x1, HALVES)
    require_filled(op, x1=x1, x2=x2, gamma=gamma)
    y, rstd, total = npu_add_rms_norm(x1, x2, gamma, epsilon)
    return y.float(), y, rstd, total


@reference("npu_layer_norm_eval", documented=())
def npu_layer_norm_eval(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """``torch.nn.functional.layer_norm``, as the documentation says.

    Assumed: float16, bfloat16 and float32 with weights of the same dtype.
    """
    op = "npu_layer_norm_eval"
    require_dtype(op, "input", input, FLOATS)
    require_dtype(op, "weight", weight, (input.dtype,))
    require_dtype(op, "bias", bias, (input.dtype,))
    wide_weight = None if weight is None else weight.float()
    wide_bias = None if bias is None else bias.float()
    normed = F.layer_norm(input.float(), list(normalized_shape), wide_weight, wide_bias, eps)
    return normed.to(input.dtype)


@reference("npu_add_layer_norm", documented=())
def npu_add_layer_norm(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    epsilon: float = 1e-5,
    additional_output: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """LayerNorm of ``x1 + x2``; returns it, mean, ``rsqrt`` of the variance, and the sum.

    Assumed: all of it, the operator being undocumented; the fourth result is the sum only if
    ``additional_output``, else undefined, here zero.
    """
    op = "npu_add_layer_norm"
    require_dtype(op, "x1", x1, FLOATS)
    require_same(op, "x2", x2, x1)
    require_dtype(op, "gamma", gamma, (x1.dtype,))
    require_same(op, "beta", beta, gamma)
    dims = normalized_dims(op, x1, gamma)
    total = (x1.float() + x2.float()).to(x1.dtype)
    wide = total.float()
    mean = wide.mean(dims, keepdim=True)
    rstd = torch.rsqrt((wide - mean).square().mean(dims, keepdim=True) + epsilon)
    y = ((wide - mean) * rstd * gamma.float() + beta.float()).to(x1.dtype)
    return y, mean, rstd, total if additional_output else torch.zeros_like(total)


def normalized_dims(op: str, x: torch.Tensor, gamma: torch.Tensor) -> tuple[int, ...]:
    """Return the trailing dimensions of ``x`` that ``gamma`` covers, refusing another shape."""
    start = x.dim() - gamma.dim()
    require(
        start >= 0 and x.shape[start:] == gamma.shape,
        op,
        f"gamma {list(gamma.shape)} beside x {list(x.shape)}",
        "its shape must be that of the last dimensions of x",
    )
    return tuple(range(start, x.dim()))


def normalize(
    wide: torch.Tensor, dims: Sequence[int], epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm without weight over ``dims`` of a float32 tensor, and the ``rsqrt``."""
    rstd = torch.rsqrt(wide.square().mean(tuple(dims), keepdim=True) + epsilon)
    return wide * rstd, rstd
