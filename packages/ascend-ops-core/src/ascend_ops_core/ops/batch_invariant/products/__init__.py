"""Batch-invariant products of matrices."""

from __future__ import annotations

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = [
    "addmm_batch_invariant",
    "bmm_batch_invariant",
    "linear_batch_invariant",
    "matmul_batch_invariant",
    "mm_batch_invariant",
]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def mm_batch_invariant(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x @ y`` of two matrices.

    Args:
        x: ``[M, K]``, float32, bfloat16 or float16; ``M`` may be 0.
        y: ``[K, N]`` of the same dtype.

    Returns:
        ``[M, N]`` in ``x.dtype``, accumulated in float32 and rounded once.

    Raises:
        InvalidInputError: other dtypes, or shapes that do not fit.
    """
    _check_product("mm", x, y, 2)
    result: torch.Tensor = _MM(x, y)
    return result


def bmm_batch_invariant(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x[b] @ y[b]`` for every ``b``.

    Args:
        x: ``[B, M, K]``, float32, bfloat16 or float16.
        y: ``[B, K, N]`` of the same dtype.

    Returns:
        ``[B, M, N]`` in ``x.dtype``.

    Raises:
        InvalidInputError: other dtypes, or shapes that do not fit.
    """
    _check_product("bmm", x, y, 3)
    result: torch.Tensor = _BMM(x, y)
    return result


def addmm_batch_invariant(
    added: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
) -> torch.Tensor:
    """``beta * added + alpha * (x @ y)``.

    Args:
        added: ``[N]``, ``[1, N]`` or ``[M, N]``, any float dtype.
        x: ``[M, K]``, float32, bfloat16 or float16.
        y: ``[K, N]`` of the same dtype.
        beta: factor of ``added``.
        alpha: factor of the product.

    Returns:
        ``[M, N]`` in ``x.dtype``, rounded once.

    Raises:
        InvalidInputError: other dtypes, or shapes that do not fit.
    """
    _check_product("addmm", x, y, 2)
    rows, columns = x.shape[0], y.shape[1]
    if tuple(added.shape) not in {(columns,), (1, columns), (rows, columns)}:
        raise InvalidInputError(
            f"added of shape {tuple(added.shape)}",
            f"it is ({columns},), (1, {columns}) or ({rows}, {columns})",
            "Expand it.",
        )
    result: torch.Tensor = _ADDMM(added, x, y, float(beta), float(alpha))
    return result


def matmul_batch_invariant(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``torch.matmul(x, y)`` by :func:`mm_batch_invariant` and :func:`bmm_batch_invariant`.

    Args:
        x: ``[K]``, ``[M, K]`` or ``[..., M, K]``, float32, bfloat16 or float16.
        y: ``[K]``, ``[K, N]`` or ``[..., K, N]`` of the same dtype; leading axes broadcast.

    Returns:
        What ``torch.matmul`` returns, in ``x.dtype``.

    Raises:
        InvalidInputError: other dtypes, scalars, or shapes that do not fit.
    """
    if x.dim() == 0 or y.dim() == 0:
        raise InvalidInputError(
            f"matmul of shapes {tuple(x.shape)} and {tuple(y.shape)}",
            "both have at least one axis",
            "Use a product of scalars.",
        )
    if x.dim() == 1:
        return matmul_batch_invariant(x[None], y).squeeze(-2 if y.dim() > 1 else 0)
    if y.dim() == 1:
        return matmul_batch_invariant(x, y[:, None]).squeeze(-1)
    if y.dim() == 2:
        flat = mm_batch_invariant(x.reshape(-1, x.shape[-1]), y)
        return flat.view(*x.shape[:-1], y.shape[1])
    lead = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x_flat = x.expand(*lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:])
    y_flat = y.expand(*lead, *y.shape[-2:]).reshape(-1, *y.shape[-2:])
    return bmm_batch_invariant(x_flat, y_flat).view(*lead, x.shape[-2], y.shape[-1])


def linear_batch_invariant(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``x @ weight.T + bias``.

    Args:
        x: ``[..., K]``, float32, bfloat16 or float16.
        weight: ``[N, K]`` of the same dtype.
        bias: ``[N]`` of any float dtype, or None.

    Returns:
        ``[..., N]`` in ``x.dtype``, rounded once after the bias is added.

    Raises:
        InvalidInputError: other dtypes, or shapes that do not fit.
    """
    _check_product("linear", x, weight.T, None)
    if bias is not None and bias.shape != (weight.shape[0],):
        raise InvalidInputError(
            f"bias of shape {tuple(bias.shape)}", f"it is ({weight.shape[0]},)", "Check the bias."
        )
    result: torch.Tensor = _LINEAR(x, weight, bias)
    return result


def _check_product(name: str, x: torch.Tensor, y: torch.Tensor, axes: int | None) -> None:
    if x.dtype not in _FLOATS or y.dtype != x.dtype:
        raise InvalidInputError(
            f"{name} of {x.dtype} and {y.dtype}",
            "both are float32, bfloat16 or float16, and equal",
            "Convert one of them.",
        )
    right_axes = x.dim() == y.dim() == axes if axes else x.dim() >= 1 and y.dim() == 2
    batches = x.shape[:-2] == y.shape[:-2] if axes else True
    if not (right_axes and batches and x.shape[-1] == y.shape[-2]):
        raise InvalidInputError(
            f"{name} of shapes {tuple(x.shape)} and {tuple(y.shape)}",
            f"both have {axes or '1 or more, and 2'} axes that fit",
            "Check the shapes.",
        )


def _empty(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=x.dtype, device=x.device)


_MM = declare(
    __name__,
    "mm_batch_invariant(Tensor x, Tensor y) -> Tensor",
    npu=("triton",),
    fake=lambda x, y: _empty(x, x.shape[0], y.shape[1]),
)
_BMM = declare(
    __name__,
    "bmm_batch_invariant(Tensor x, Tensor y) -> Tensor",
    npu=("triton",),
    fake=lambda x, y: _empty(x, x.shape[0], x.shape[1], y.shape[2]),
)
_ADDMM = declare(
    __name__,
    "addmm_batch_invariant(Tensor added, Tensor x, Tensor y, float beta, float alpha) -> Tensor",
    npu=("triton",),
    fake=lambda added, x, y, beta, alpha: _empty(x, x.shape[0], y.shape[1]),
)
_LINEAR = declare(
    __name__,
    "linear_batch_invariant(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    npu=("triton",),
    fake=lambda x, weight, bias: _empty(x, *x.shape[:-1], weight.shape[0]),
)
