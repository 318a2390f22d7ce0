"""Decay and writing strength of gated delta rules, from what a layer projects.

The decay of a step is ``exp(g)`` with ``g <= 0``; how much of a step's value is written is
``beta``. Gated DeltaNet has one decay for a head, Kimi Delta Attention one for every key channel.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, require_dtype, require_shape
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.linear_gates import reference

_cpu = CpuKernels("ascend_attention.ops.linear_gates.cpu")

__all__ = ["LEAST_LOWER_BOUND", "gdn_gates", "kda_gates"]

LEAST_LOWER_BOUND = -5.0
"""Smallest bound of a decay that Kimi-K3's config allows."""


def gdn_gates(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    *,
    beta_dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gates of Gated DeltaNet: ``g = -exp(a_log) * softplus(a + dt_bias)``, ``beta = sigmoid(b)``.

    ``softplus`` is the identity above 20.

    Args:
        a: ``[T, H]`` float32, bfloat16 or float16; ``T`` may be 0.
        b: as ``a``.
        a_log: ``[H]`` of any float dtype.
        dt_bias: ``[H]`` of any float dtype.
        beta_dtype: of ``beta``, rounded once.

    Returns:
        ``g``, ``[T, H]`` float32, and ``beta``, ``[T, H]``.

    Raises:
        InvalidInputError: another shape or dtype.

    Source: Gated Delta Networks (Yang et al., 2024), with Mamba2's parametrisation of the decay.
    """
    require_dtype("a", a, FLOATS)
    require_shape("a", a, None, None)
    require_dtype("b", b, FLOATS)
    require_shape("b", b, *a.shape)
    for name, value in (("a_log", a_log), ("dt_bias", dt_bias)):
        require_dtype(name, value, FLOATS)
        require_shape(name, value, a.shape[1])
    if beta_dtype not in FLOATS:
        raise InvalidInputError(
            f"beta_dtype={beta_dtype}", "it is float32, bfloat16 or float16", "Choose one of them."
        )
    result: tuple[torch.Tensor, torch.Tensor] = _GDN_GATES(a, b, a_log, dt_bias, beta_dtype)
    return result


def kda_gates(
    f: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    *,
    lower_bound: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gates of Kimi Delta Attention: a decay for every key channel.

    With ``r = f + dt_bias`` the decay is ``g = -exp(a_log) * softplus(r)``; with a bound it is
    ``g = lower_bound * sigmoid(exp(a_log) * r)``, which lies between the bound and 0. ``softplus``
    is the identity above 20, and ``beta = sigmoid(b)``.

    Args:
        f: ``[T, H, D]`` float32, bfloat16 or float16; ``T`` may be 0.
        b: ``[T, H]`` of a float dtype.
        a_log: ``[H]`` of any float dtype.
        dt_bias: ``[H, D]`` of any float dtype.
        lower_bound: from -5 to below 0, or None.

    Returns:
        ``g`` ``[T, H, D]`` and ``beta`` ``[T, H]``, float32.

    Raises:
        InvalidInputError: another shape or dtype, or a bound outside its range.

    Source: Kimi Linear (Moonshot AI, 2025), section 3; vLLM's ``kimi_k3/nvidia/ops`` for the bound.
    """
    require_dtype("f", f, FLOATS)
    require_shape("f", f, None, None, None)
    tokens, heads, width = f.shape
    require_dtype("b", b, FLOATS)
    require_shape("b", b, tokens, heads)
    require_dtype("a_log", a_log, FLOATS)
    require_shape("a_log", a_log, heads)
    require_dtype("dt_bias", dt_bias, FLOATS)
    require_shape("dt_bias", dt_bias, heads, width)
    if lower_bound is not None and not LEAST_LOWER_BOUND <= lower_bound < 0:
        raise InvalidInputError(
            f"lower_bound={lower_bound}",
            f"it lies from {LEAST_LOWER_BOUND} to below 0",
            "Pass None for decays without a bound.",
        )
    result: tuple[torch.Tensor, torch.Tensor] = _KDA_GATES(f, b, a_log, dt_bias, lower_bound)
    return result


def _gdn_cpu(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    beta_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    kernels = _cpu.usable(a, b, a_log, dt_bias)
    run = reference.gdn_gates
    if kernels is not None and kernels.supports(a, b, beta_dtype):
        run = kernels.gdn_gates
    return run(a, b, a_log, dt_bias, beta_dtype)


def _fake_gates(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    beta_dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    return a.new_empty(a.shape, dtype=torch.float32), b.new_empty(b.shape, dtype=beta_dtype)


_GDN_GATES = declare(
    __name__,
    "gdn_gates(Tensor a, Tensor b, Tensor a_log, Tensor dt_bias, ScalarType beta_dtype) "
    "-> (Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=_fake_gates,
    cpu=_gdn_cpu,
)

_KDA_GATES = declare(
    __name__,
    "kda_gates(Tensor f, Tensor b, Tensor a_log, Tensor dt_bias, float? lower_bound) "
    "-> (Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=lambda f, b, a_log, dt_bias, lower_bound: _fake_gates(f, b, a_log, dt_bias),
)
