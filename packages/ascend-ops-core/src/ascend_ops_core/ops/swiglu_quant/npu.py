"""SwiGLU with quantised rows by torch_npu, and the limits of every NPU implementation.

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_MAX_WIDTH = 8192
_MAX_GROUPED_WIDTH, _GROUPED_UNIT = 10496, 64
_MAX_ROWS = 2**31


def swiglu_quant(
    gate_up: torch.Tensor, groups: torch.Tensor | None, cumulative: bool, limit: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``npu_swiglu_quant``; see :func:`ascend_ops_core.ops.swiglu_quant.swiglu_quant`."""
    values, scales = torch.ops.npu.npu_swiglu_quant(gate_up, activate_left=True, quant_mode=1)
    return values, scales


def supports_swiglu_quant(
    facts: DeviceFacts,
    gate_up: torch.Tensor,
    groups: torch.Tensor | None,
    cumulative: bool,
    limit: float | None,
) -> Support:
    """A2 and A3; float rows of at most 8192 channels, all of them, without a limit.

    These are torch_npu's documented limits, but for the groups: the operator has them, and does
    not say what it leaves in the rows behind them.
    """
    return first_refusal(
        (
            facts.family in ("A2", "A3"),
            f"{facts.family}, npu_swiglu_quant is documented for A2, A3",
        ),
        (not limit, f"limit {limit}, npu_swiglu_quant has none"),
        (groups is None, "groups, npu_swiglu_quant leaves rows behind them undefined"),
        _float("npu_swiglu_quant", gate_up),
        (
            gate_up.shape[-1] <= _MAX_WIDTH,
            f"{gate_up.shape[-1]} channels, npu_swiglu_quant takes at most {_MAX_WIDTH}",
        ),
        (gate_up.numel() > 0, "gate_up is empty"),
    )


def dequant_swiglu_quant(
    gate_up: torch.Tensor,
    weight_scale: torch.Tensor,
    activation_scale: torch.Tensor,
    groups: torch.Tensor | None,
    cumulative: bool,
    limit: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``npu_dequant_swiglu_quant``, the rows behind the groups set to 0.

    See :func:`ascend_ops_core.ops.swiglu_quant.dequant_swiglu_quant`.
    """
    sizes = groups
    if groups is not None and cumulative:
        sizes = groups.diff(prepend=groups.new_zeros(1))
    values, scales = torch.ops.npu.npu_dequant_swiglu_quant(
        gate_up,
        weight_scale=weight_scale,
        activation_scale=activation_scale,
        group_index=sizes,
        activate_left=True,
        quant_mode=1,
    )
    if sizes is not None:
        inside = torch.arange(gate_up.shape[0], device=gate_up.device) < sizes.sum()
        values = torch.where(inside[:, None], values, 0)
        scales = torch.where(inside, scales, 0)
    return values, scales


def supports_dequant_swiglu_quant(
    facts: DeviceFacts,
    gate_up: torch.Tensor,
    weight_scale: torch.Tensor,
    activation_scale: torch.Tensor,
    groups: torch.Tensor | None,
    cumulative: bool,
    limit: float | None,
) -> Support:
    """A2 and A3; no limit; with groups at most 10496 channels, in 64s (torch_npu's documentation).

    Its ``swiglu_mode`` 1 limits, but whether it takes alternating channels is not documented.
    """
    op = "npu_dequant_swiglu_quant"
    width = gate_up.shape[1] // 2
    fits = width <= _MAX_GROUPED_WIDTH and width % _GROUPED_UNIT == 0
    return first_refusal(
        (facts.family in ("A2", "A3"), f"{facts.family}, {op} is documented for A2, A3"),
        (not limit, f"limit {limit}, {op} documents none for separate halves"),
        (
            groups is None or fits,
            f"{width} channels with groups, {op} takes multiples of {_GROUPED_UNIT} up to "
            f"{_MAX_GROUPED_WIDTH}",
        ),
        (gate_up.numel() > 0, "gate_up is empty"),
    )


def supports_dequant_swiglu_quant_triton(
    facts: DeviceFacts,
    gate_up: torch.Tensor,
    weight_scale: torch.Tensor,
    activation_scale: torch.Tensor,
    groups: torch.Tensor | None,
    cumulative: bool,
    limit: float | None,
) -> Support:
    """Fewer than 2^31 rows, any width."""
    return first_refusal(
        (gate_up.shape[0] < _MAX_ROWS, f"{gate_up.shape[0]} rows, the kernel counts in 31 bits")
    )


def supports_swiglu_quant_triton(
    facts: DeviceFacts,
    gate_up: torch.Tensor,
    groups: torch.Tensor | None,
    cumulative: bool,
    limit: float | None,
) -> Support:
    """Any float dtype, any width."""
    return first_refusal(_float("the kernel", gate_up))


def _float(taker: str, x: torch.Tensor) -> tuple[bool, str]:
    return x.dtype in _FLOATS, f"{x.dtype}, {taker} takes float16, bfloat16, float32"
