"""The norm that gated delta rules apply to queries and keys."""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, require_dtype
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.l2_norm import reference

_cpu = CpuKernels("ascend_attention.ops.l2_norm.cpu")

__all__ = ["l2_norm"]


def l2_norm(
    x: torch.Tensor,
    *,
    eps: float = 1e-6,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``x / sqrt(sum(x^2) + eps) * scale`` over the last axis; ``eps`` stands inside the root.

    Args:
        x: ``[..., D]`` float32, bfloat16 or float16; may have no rows.
        eps: added to the sum of squares.
        scale: factor of the result, above 0; for queries ``D ** -0.5``.
        dtype: of the result, one of the same three; that of ``x`` by default.

    Returns:
        ``[..., D]``, contiguous; computed in float32 and rounded once.

    Raises:
        InvalidInputError: no axis, another dtype, or no positive scale.

    Source: Gated Delta Networks (Yang et al., 2024), section 3.4.
    """
    require_dtype("x", x, FLOATS)
    if not x.dim():
        raise InvalidInputError("x without an axis", "its last axis is normed", "Pass rows.")
    wanted = x.dtype if dtype is None else dtype
    if wanted not in FLOATS:
        raise InvalidInputError(
            f"dtype={wanted}", "results are float32, bfloat16 or float16", "Choose one of them."
        )
    if scale <= 0:
        raise InvalidInputError(f"scale={scale}", "it is above 0", "Multiply by -1 elsewhere.")
    result: torch.Tensor = _L2_NORM(x, eps, scale, wanted)
    return result


def _l2_norm_cpu(x: torch.Tensor, eps: float, scale: float, dtype: torch.dtype) -> torch.Tensor:
    kernels = _cpu.usable(x)
    run = reference.l2_norm
    if kernels is not None and kernels.supports(x, dtype):
        run = kernels.l2_norm
    return run(x, eps, scale, dtype)


_L2_NORM = declare(
    __name__,
    "l2_norm(Tensor x, float eps, float scale, ScalarType dtype) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda x, eps, scale, dtype: torch.empty(x.shape, dtype=dtype, device=x.device),
    cpu=_l2_norm_cpu,
)
