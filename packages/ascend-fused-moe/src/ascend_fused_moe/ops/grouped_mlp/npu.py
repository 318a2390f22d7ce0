"""The grouped products by torch_npu, and the limits of every NPU implementation.

Those of torch_npu are from its documentation of ``npu_grouped_matmul`` and
``npu_grouped_matmul_swiglu_quant_v2`` and, for A5 and the shapes of scales, of CANN's
``aclnnGroupedMatmulV4`` behind the former. Not run on hardware; checked against torch_npu's
schemas.
"""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.ops.quantization.formats import e8m0_values
from ascend_ops_core.support import Support, first_refusal, refuse

_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (*_HALVES, torch.float32)
_MAX_GROUPS = 1024
_INNER_LIMIT = 65536
_BY_ROWS, _ONE_RESULT = 0, 2
_CUMULATIVE, _COUNTS = 0, 1
_MX_PAIR = 64
_CODES = {torch.int32: 3, torch.float16: 5, torch.float32: 6, torch.bfloat16: 15}
_E8M0, _E2M1 = 293, 296  # torch_npu.float8_e8m0fnu and float4_e2m1fn_x2
_OP = "npu_grouped_matmul"
_FUSED = "npu_grouped_matmul_swiglu_quant_v2"


def grouped_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    groups: torch.Tensor,
    cumulative: bool,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """``npu_grouped_matmul``; see :func:`ascend_fused_moe.ops.grouped_mlp.grouped_matmul`.

    The bias is added afterwards: which dtype of it goes with which product differs by device.
    """
    y = _product(x, weight, groups, cumulative)
    if bias is None:
        return y
    return (y.float() + _by_row(bias.float(), groups, cumulative, x.shape[0])).to(x.dtype)


def supports_grouped_matmul(
    facts: DeviceFacts,
    x: torch.Tensor,
    weight: torch.Tensor,
    groups: torch.Tensor,
    cumulative: bool,
    bias: torch.Tensor | None,
) -> Support:
    """16-bit floats, on A2 and A3 also float32; at most 1024 groups; fewer than 65536 columns."""
    dtypes = _HALVES if facts.family == "A5" else _FLOATS
    names = ", ".join(str(one).removeprefix("torch.") for one in dtypes)
    return first_refusal(
        (x.dtype in dtypes, f"x of {x.dtype}, {_OP} on {facts.family} takes {names}"),
        *_sizes(facts, x, weight),
    )


def supports_grouped_matmul_triton(
    facts: DeviceFacts,
    x: torch.Tensor,
    weight: torch.Tensor,
    groups: torch.Tensor,
    cumulative: bool,
    bias: torch.Tensor | None,
) -> Support:
    """Any float dtype and size, dense weights."""
    return first_refusal(
        (x.dtype in _FLOATS, f"x of {x.dtype}, the kernel takes float16, bfloat16, float32"),
        (
            weight.is_contiguous(),
            f"a weight with strides {list(weight.stride())}, the kernel takes dense ones",
        ),
    )


def grouped_matmul_int32(
    x: torch.Tensor, weight: torch.Tensor, groups: torch.Tensor, cumulative: bool
) -> torch.Tensor:
    """``npu_grouped_matmul``; see :func:`ascend_fused_moe.ops.grouped_mlp.grouped_matmul_int32`."""
    return _product(x, weight, groups, cumulative, output_dtype=_CODES[torch.int32])


def supports_grouped_matmul_int32(
    facts: DeviceFacts,
    x: torch.Tensor,
    weight: torch.Tensor,
    groups: torch.Tensor,
    cumulative: bool,
) -> Support:
    """A2 and A3; at most 1024 groups; fewer than 65536 columns."""
    return first_refusal(
        (facts.family in ("A2", "A3"), f"{facts.family}, {_OP} gives int32 on A2, A3"),
        *_sizes(facts, x, weight),
    )


def grouped_matmul_quantized(
    x: torch.Tensor,
    x_scale: torch.Tensor | None,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    groups: torch.Tensor,
    cumulative: bool,
    bias: torch.Tensor | None,
    rows: str,
    weights: str,
    dtype: torch.dtype,
) -> torch.Tensor:
    """``npu_grouped_matmul``, the bias added afterwards.

    See :func:`ascend_fused_moe.ops.grouped_mlp.grouped_matmul_quantized`.
    """
    assert x_scale is not None
    options: dict[str, Any] = {}
    if weights == "fp8_block":
        x_scale, weight_scale = _as_floats(x_scale), _as_floats(weight_scale)
    if weights in ("mxfp8", "mxfp4"):
        # torch_npu takes powers of two in pairs.
        x_scale = x_scale.unflatten(-1, (-1, 2))
        weight_scale = weight_scale.unflatten(-1, (-1, 2))
        options |= {"scale_dtype": _E8M0, "per_token_scale_dtype": _E8M0}
    if weights == "mxfp4":
        options |= {"x_dtype": _E2M1, "weight_dtype": _E2M1}
    y = _product(
        x,
        weight,
        groups,
        cumulative,
        scale=[weight_scale],
        per_token_scale=[x_scale],
        output_dtype=_CODES[dtype],
        **options,
    )
    if bias is None:
        return y
    return (y.float() + _by_row(bias.float(), groups, cumulative, x.shape[0])).to(dtype)


def supports_grouped_matmul_quantized(
    facts: DeviceFacts,
    x: torch.Tensor,
    x_scale: torch.Tensor | None,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    groups: torch.Tensor,
    cumulative: bool,
    bias: torch.Tensor | None,
    rows: str,
    weights: str,
    dtype: torch.dtype,
) -> Support:
    """int8 everywhere; blocks of float8, and microscaling, on A5.

    int8 with bfloat16 scales gives bfloat16, with float32 scales float16, on A5 also bfloat16.
    Microscaling needs a multiple of 64 columns, since its scales go in pairs.
    """
    if weights == "int4":
        return refuse(f"int4 weights, {_OP} wants their scales and a sum prepared in its own way")
    if rows != weights:
        return refuse(f"{weights} weights with {rows} rows, {_OP} documents equal formats")
    columns = x.shape[1] * (2 if weights == "mxfp4" else 1)
    on_a5 = facts.family == "A5"
    pairs = {(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float16)}
    if on_a5:
        pairs.add((torch.float32, torch.bfloat16))
    return first_refusal(
        (weights == "int8" or on_a5, f"{weights} on {facts.family}, {_OP} takes it on A5"),
        (
            weights != "int8" or (weight_scale.dtype, dtype) in pairs,
            f"weight_scale of {weight_scale.dtype} for a result of {dtype}, {_OP} on "
            f"{facts.family} gives bfloat16 with bfloat16"
            f"{' or float32' if on_a5 else ''}, float16 with float32",
        ),
        (
            weights not in ("mxfp8", "mxfp4") or columns % _MX_PAIR == 0,
            f"{columns} columns of {weights}, {_OP} takes multiples of {_MX_PAIR}",
        ),
        *_sizes(facts, x, weight),
    )


def _as_floats(scale: torch.Tensor) -> torch.Tensor:
    """Scales in float32, also where they are stored as powers of two."""
    return e8m0_values(scale) if scale.dtype == torch.uint8 else scale


def grouped_matmul_swiglu_quant(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    groups: torch.Tensor,
    cumulative: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``npu_grouped_matmul_swiglu_quant_v2``.

    See :func:`ascend_fused_moe.ops.grouped_mlp.grouped_matmul_swiglu_quant`.
    """
    values, scales = torch.ops.npu.npu_grouped_matmul_swiglu_quant_v2(
        x,
        [weight],
        [weight_scale],
        x_scale,
        groups,
        dequant_dtype=_CODES[torch.float32],
        group_list_type=_CUMULATIVE if cumulative else _COUNTS,
    )
    return values, scales


def supports_grouped_matmul_swiglu_quant(
    facts: DeviceFacts,
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    groups: torch.Tensor,
    cumulative: bool,
) -> Support:
    """A2, A3 and A5; at most 1024 groups; fewer than 65536 columns."""
    families = ("A2", "A3", "A5")
    return first_refusal(
        (
            facts.family in families,
            f"{facts.family}, {_FUSED} is documented for {', '.join(families)}",
        ),
        *_sizes(facts, x, weight, _FUSED),
    )


def _product(
    x: torch.Tensor, weight: torch.Tensor, groups: torch.Tensor, cumulative: bool, **options: Any
) -> torch.Tensor:
    # Counts of one group are refused; its running sum is the same number.
    kind = _CUMULATIVE if cumulative or groups.shape[0] == 1 else _COUNTS
    result: list[torch.Tensor] = torch.ops.npu.npu_grouped_matmul(
        [x],
        [weight.transpose(1, 2)],
        group_list=groups,
        split_item=_ONE_RESULT,
        group_type=_BY_ROWS,
        group_list_type=kind,
        **options,
    )
    return result[0]


def _by_row(
    values: torch.Tensor, groups: torch.Tensor, cumulative: bool, rows: int
) -> torch.Tensor:
    """Give each row the values of its group, without a look at the list on the host."""
    ends = groups if cumulative else groups.cumsum(0)
    row = torch.arange(rows, device=groups.device)
    return values.index_select(0, torch.bucketize(row, ends, right=True))


def _sizes(
    facts: DeviceFacts, x: torch.Tensor, weight: torch.Tensor, op: str = _OP
) -> tuple[tuple[bool, str], ...]:
    return (
        (
            facts.family in ("A2", "A3", "A5"),
            f"{facts.family}, {op} with these arguments is documented for A2, A3, A5",
        ),
        (
            weight.shape[0] <= _MAX_GROUPS,
            f"{weight.shape[0]} groups, {op} takes at most {_MAX_GROUPS}",
        ),
        *(
            (size < _INNER_LIMIT, f"{size} columns of {name}, {op} takes fewer than {_INNER_LIMIT}")
            for name, size in (("x", x.shape[1]), ("a weight", weight.shape[2]))
        ),
        (x.numel() > 0, "x is empty"),
        (x.is_contiguous(), f"x with strides {list(x.stride())}, {op} takes dense rows"),
        (weight.is_contiguous(), f"a weight with strides, {op} is given dense ones"),
    )
