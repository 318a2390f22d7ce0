"""Matrix products of quantised values."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ascend_ops_core.testing.npu_references.limits import (
    HALVES,
    require,
    require_contiguous,
    require_dtype,
    require_family,
    require_filled,
    require_rank,
    target_dtype,
)
from ascend_ops_core.testing.npu_references.registry import reference
from ascend_ops_core.testing.npu_references.rounding import narrowed

_MAX_INNER = 65535
_MX_BLOCK = 32
_OUTPUTS = {None: torch.int8, 1: torch.int8, 5: torch.float16, 15: torch.bfloat16, 3: torch.int32}


@reference("npu_quant_matmul", documented=("A2", "A3", "310P"))
def npu_quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    pertoken_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    output_dtype: int | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    pertoken_scale_dtype: int | None = None,
    scale_dtype: int | None = None,
    group_sizes: Sequence[int] | None = None,
    y_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """``(x1 @ x2 + int32 bias) * scale * pertoken_scale + float bias`` of int8 matrices.

    x1 [..., m, k] and x2 [..., k, n] int8; scale [1] or [n]; pertoken_scale float32 [m]; bias [n];
    offset float32 [1] or [n], added for an int8 result.

    Limits: 2 to 6 dimensions; last sizes at most 65535; the documented combinations of dtypes on A2
    and A3: float16 and int8 results with a float32 scale and int32 bias; bfloat16 with a float32 or
    bfloat16 scale; pertoken_scale only for float16 and bfloat16; int32 results with a float32 or
    bfloat16 scale and an int32 bias.

    Assumed: sums are exact; an int32 result is not scaled; results are rounded half to even. int4,
    float8, int64 scales, group_sizes and y_scale are not modelled.
    """
    op = "npu_quant_matmul"
    require_dtype(op, "x1", x1, (torch.int8,))
    require_dtype(op, "x2", x2, (torch.int8,))
    require_rank(op, "x1", x1, 2, 6)
    require_rank(op, "x2", x2, 2, 6)
    special = (x1_dtype, x2_dtype, pertoken_scale_dtype, scale_dtype, group_sizes, y_scale)
    require(all(one is None for one in special), op, "dtype or group arguments", "not modelled")
    for name, size in (("x1", x1.shape[-1]), ("x2", x2.shape[-1])):
        require(size <= _MAX_INNER, op, f"last size {size} of {name}", f"at most {_MAX_INNER}")
    require(output_dtype in _OUTPUTS, op, f"output_dtype={output_dtype}", "int8, half, int32")
    target = _OUTPUTS[output_dtype]
    n = x2.shape[-1]
    scale_dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    if target in (torch.bfloat16, torch.int32):
        scale_dtypes = (torch.float32, torch.bfloat16)
    require_dtype(op, "scale", scale, scale_dtypes)
    require(scale.dim() == 1 and scale.shape[0] in (1, n), op, f"scale {list(scale.shape)}", "1, n")
    halves = target in (torch.float16, torch.bfloat16)
    if pertoken_scale is not None:
        require(halves, op, f"pertoken_scale for {target}", "only for float16, bfloat16")
        require_dtype(op, "pertoken_scale", pertoken_scale, (torch.float32,))
        m = x1.shape[-2]
        fits = tuple(pertoken_scale.shape) == (m,)
        require(fits, op, f"pertoken_scale {list(pertoken_scale.shape)}", f"[{m}]")
    if offset is not None:
        require(target == torch.int8, op, f"offset for {target}", "only for int8")
        require_dtype(op, "offset", offset, (torch.float32,))
    if bias is not None:
        biases = [torch.int32]
        if target == torch.bfloat16:
            biases += [torch.bfloat16, torch.float32]
        elif target == torch.float16 and pertoken_scale is not None:
            biases += [torch.float16, torch.float32]
        require_dtype(op, "bias", bias, biases)
        require(tuple(bias.shape) == (n,), op, f"bias {list(bias.shape)}", f"[{n}] is modelled")
    product = x1.long() @ x2.long()
    if bias is not None and bias.dtype == torch.int32:
        product = product + bias
    if target == torch.int32:
        return product.to(torch.int32)
    values = product.double() * scale.double()
    if pertoken_scale is not None:
        values = values * pertoken_scale.double()[:, None]
    if bias is not None and bias.dtype != torch.int32:
        values = values + bias.double()
    if offset is not None:
        values = values + offset.double()
    return narrowed(values, torch.int8) if target == torch.int8 else values.float().to(target)


@reference("npu_transpose_quant_batchmatmul", documented=("A5",))
def npu_transpose_quant_batchmatmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    dtype: int,
    *,
    bias: torch.Tensor | None = None,
    x1_scale: torch.Tensor | None = None,
    x2_scale: torch.Tensor | None = None,
    group_sizes: Sequence[int] | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
) -> torch.Tensor:
    """A product for each of b groups of MXFP8 values: ``[m, b, k]`` with ``[b, n, k]``.

    The wheel has no text for it; the limits are those of its public documentation (op-plugin). x1
    and x2 float8_e4m3fn; scales float8_e8m0fnu [m, b, k / 64, 2] and [b, n, k / 64, 2]; result
    float16 or bfloat16 [m, b, n].

    Limits: three dimensions; k a multiple of 64; perm_x1 and perm_y [1, 0, 2]; group_sizes
    [0 or 1, 0 or 1, 32]; no bias; batch_split_factor 1. Modelled: perm_x2 [0, 2, 1], MX scales.

    Assumed: sums run in float32; operands are contiguous and have elements.
    """
    op = "npu_transpose_quant_batchmatmul"
    require_family(op, "A5")
    target = target_dtype(op, dtype, HALVES)
    for name, one in (("x1", x1), ("x2", x2)):
        require_dtype(op, name, one, (torch.float8_e4m3fn,))
        require_rank(op, name, one, 3, 3)
    require_filled(op, x1=x1, x2=x2)
    require_contiguous(op, x1=x1, x2=x2)
    order = tuple(map(tuple, (perm_x1 or (), perm_x2 or (), perm_y or ())))
    wanted = ((1, 0, 2), (0, 2, 1), (1, 0, 2))
    require(order == wanted, op, f"perm_x1, perm_x2, perm_y {order}", f"{wanted} is modelled")
    plain = (bias, batch_split_factor, x1_dtype, x2_dtype)
    require(plain == (None, 1, None, None), op, f"options {plain}", "defaults are modelled")
    sizes = tuple(group_sizes or ())
    fits = len(sizes) == 3 and set(sizes[:2]) <= {0, 1} and sizes[2] == _MX_BLOCK
    require(fits, op, f"group_sizes={sizes}", f"[0, 0, {_MX_BLOCK}]")
    k = x1.shape[-1]
    require(k % (2 * _MX_BLOCK) == 0, op, f"k={k}", f"a multiple of {2 * _MX_BLOCK}")
    same = x2.shape[-1] == k and x2.shape[0] == x1.shape[1]
    require(same, op, f"x1 {list(x1.shape)} and x2 {list(x2.shape)}", "[m, b, k] and [b, n, k]")
    return torch.einsum(
        "mbk,bnk->mbn",
        _unscaled(op, "x1", x1, x1_scale),
        _unscaled(op, "x2", x2, x2_scale),
    ).to(target)


def _unscaled(op: str, name: str, values: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    wanted = [*values.shape[:-1], values.shape[-1] // (2 * _MX_BLOCK), 2]
    given = scale is not None and list(scale.shape) == wanted
    require(given, op, f"scale of {name}", f"its shape is {wanted}")
    assert scale is not None
    require_dtype(op, f"{name}_scale", scale, (torch.float8_e8m0fnu,))
    return values.float() * scale.float().flatten(-2).repeat_interleave(_MX_BLOCK, -1)
