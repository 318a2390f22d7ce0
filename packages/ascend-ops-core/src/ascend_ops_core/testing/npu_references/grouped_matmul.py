"""Grouped products: rows of one matrix times the matrix of their group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from ascend_ops_core.testing.npu_references.limits import (
    FLOATS,
    FP4_E2M1,
    HALVES,
    family,
    require,
    require_contiguous,
    require_dtype,
    require_rank,
    target_dtype,
)
from ascend_ops_core.testing.npu_references.quantization import quantized_rows
from ascend_ops_core.testing.npu_references.registry import reference

_MAX_GROUPS = 1024
_INNER_LIMIT = 65536
_E8M0 = 293
_E4M3 = torch.float8_e4m3fn
_BLOCK = 128
_FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@reference("npu_grouped_matmul", documented=("A2", "A3", "A5", "310P"))
def npu_grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    scale: Sequence[torch.Tensor] | None = None,
    per_token_scale: Sequence[torch.Tensor] | None = None,
    group_list: torch.Tensor | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    output_dtype: int | None = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    scale_dtype: int | None = None,
    per_token_scale_dtype: int | None = None,
    **others: Any,
) -> list[torch.Tensor]:
    """``x[rows of g] @ weight[g]`` for one x [M, K] and one weight [G, K, N], one result [M, N].

    ``group_list`` int64 [G] holds ends (``group_list_type`` 0) or sizes (1) of the groups.

    Quantised: int8 with ``scale`` [G, N] and ``per_token_scale`` float32 [M], or without both to
    int32; on A5 float8_e4m3fn with scales of 128 columns [M, ceil(K/128)] and, the weight being
    transposed, [G, ceil(N/128), ceil(K/128)]; on A5 float8_e4m3fn or packed FP4 with powers of two
    [M, ceil(K/64), 2] and, transposed, [G, N, ceil(K/64), 2].

    Limits: float16, bfloat16, on A2 and A3 float32, one dtype; ``group_type`` 0 with ``split_item``
    2 or 3; at most 1024 groups, sizes of more than one, which sum to M; x not transposed; last
    sizes, of a transposed weight the K axis, below 65536; int8 gives bfloat16 with a bfloat16
    scale, float16 with a float32 one, on A5 bfloat16 with it too; int32 on A2 and A3.

    Assumed: products are summed in float32 and rounded once, those of int8 are summed exactly;
    scales of a transposed weight lie as CANN's aclnnGroupedMatmulV4 says. Other forms, biases and
    activations are not modelled.
    """
    op = "npu_grouped_matmul"
    bare = not any(value is not None for value in others.values()) and act_type in (None, 0)
    require(bare, op, f"act_type or one of {sorted(others)}", "not modelled")
    single = len(x) == len(weight) == 1 and group_type == 0
    require(single, op, "more than one x or weight, or group_type", "not modelled")
    require(split_item in (2, 3), op, f"split_item={split_item}", "2 or 3 with group_type 0")
    rows, matrices = x[0], weight[0]
    require_rank(op, "x", rows, 2, 2)
    require_rank(op, "weight", matrices, 3, 3)
    require_contiguous(op, x=rows)
    last = matrices.shape[2] if matrices.stride(2) == 1 else matrices.shape[1]
    for name, size in (("x", rows.shape[1]), ("weight", last)):
        require(size < _INNER_LIMIT, op, f"last size {size} of {name}", "below 65536")
    require(rows.shape[1] == matrices.shape[1], op, f"{rows.shape[1]} columns", "those of weight")
    sizes = _group_sizes(op, group_list, group_list_type, matrices.shape[0], rows.shape[0])
    if rows.dtype in FLOATS:
        taken = HALVES if family() == "A5" else FLOATS
        require_dtype(op, "x", rows, taken)
        require_dtype(op, "weight", matrices, (rows.dtype,))
        require(scale is None and per_token_scale is None, op, "scales of floats", "none")
        return [_products(rows.float(), matrices.float(), sizes).to(rows.dtype)]
    if rows.dtype == torch.int8:
        require_dtype(op, "weight", matrices, (torch.int8,))
        return [_of_int8(op, rows, matrices, sizes, scale, per_token_scale, output_dtype)]
    require(family() == "A5", op, f"x of {rows.dtype}", "8-bit floats and FP4 on A5")
    require(scale is not None and per_token_scale is not None, op, "no scales", "both")
    assert scale is not None
    assert per_token_scale is not None
    dtype = target_dtype(op, output_dtype, FLOATS)
    codes = (x_dtype, weight_dtype)
    require(codes in ((None, None), (FP4_E2M1, FP4_E2M1)), op, f"dtypes {codes}", "none or FP4")
    powers = (scale_dtype, per_token_scale_dtype) == (_E8M0, _E8M0)
    wide = _unpacked(rows) if codes[0] else rows
    turned = matrices.transpose(1, 2)
    matrix = _unpacked(turned) if codes[1] else turned
    if powers:
        wide = _microscaled(op, wide, per_token_scale[0])
        matrix = _microscaled(op, matrix, scale[0])
    else:
        require_dtype(op, "x", rows, (_E4M3,))
        require_dtype(op, "weight", matrices, (_E4M3,))
        wide = wide.float() * _spread(op, per_token_scale[0], wide.shape, (1, _BLOCK))
        matrix = matrix.float() * _spread(op, scale[0], matrix.shape, (_BLOCK, _BLOCK))
    return [_products(wide, matrix.transpose(1, 2), sizes).to(dtype)]


@reference("npu_grouped_matmul_swiglu_quant_v2", documented=("A2", "A3", "A5"))
def npu_grouped_matmul_swiglu_quant_v2(
    x: torch.Tensor,
    weight: Sequence[torch.Tensor],
    weight_scale: Sequence[torch.Tensor],
    x_scale: torch.Tensor,
    group_list: torch.Tensor,
    *,
    dequant_dtype: int | None = 6,
    quant_dtype: int | None = 1,
    group_list_type: int | None = 0,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 rows times int8 weights of their group, dequantised, SwiGLU, and quantised by rows.

    x [M, K]; weight [G, K, N]; weight_scale float32 [G, N]; x_scale float32 [M]; group_list int64
    [G], ends (``group_list_type`` 0) or sizes (1). Returns int8 [M, N / 2] and float32 [M].

    Limits: dequant_dtype float32; int8.

    Assumed: sums are exact; the gate is the first half; rows behind the groups are undefined, here
    zero; the layout NZ of the weight, which is required, is not modelled. int4, float8, smooth
    scales and auxiliary matrices are not modelled.
    """
    op = "npu_grouped_matmul_swiglu_quant_v2"
    bare = not any(value for value in others.values() if value is not None)
    require(bare, op, f"one of {sorted(others)}", "not modelled")
    require(dequant_dtype == 6 and quant_dtype == 1, op, "other target dtypes", "6 and 1")
    require(len(weight) == len(weight_scale) == 1, op, f"{len(weight)} weights", "1")
    require_dtype(op, "x", x, (torch.int8,))
    require_dtype(op, "weight", weight[0], (torch.int8,))
    require_dtype(op, "weight_scale", weight_scale[0], (torch.float32,))
    require_dtype(op, "x_scale", x_scale, (torch.float32,))
    require(x.shape[1] == weight[0].shape[1], op, f"{x.shape[1]} columns", "those of weight")
    sizes = _group_sizes(op, group_list, group_list_type, weight[0].shape[0], x.shape[0])
    sums = _products(x.double(), weight[0].double(), sizes)
    by_row = weight_scale[0].repeat_interleave(sizes, 0)
    gate, up = (sums.float() * by_row * x_scale[:, None]).chunk(2, -1)
    return quantized_rows(F.silu(gate) * up, torch.int8)


def _of_int8(
    op: str,
    rows: torch.Tensor,
    matrices: torch.Tensor,
    sizes: torch.Tensor,
    scale: Sequence[torch.Tensor] | None,
    per_token_scale: Sequence[torch.Tensor] | None,
    output_dtype: int | None,
) -> torch.Tensor:
    sums = _products(rows.double(), matrices.double(), sizes)
    dtype = target_dtype(op, output_dtype, (torch.int32, *HALVES))
    if dtype == torch.int32:
        require(scale is None and per_token_scale is None, op, "scales of int32", "none")
        require(family() in ("A2", "A3"), op, f"int32 on {family()}", "A2, A3")
        return sums.to(torch.int32)
    require(scale is not None and per_token_scale is not None, op, "no scales", "both")
    assert scale is not None
    assert per_token_scale is not None
    pairs = [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float16)]
    if family() == "A5":
        pairs.append((torch.float32, torch.bfloat16))
    pair = (scale[0].dtype, dtype)
    require(pair in pairs, op, f"scale of {pair[0]} for {pair[1]}", f"{pairs}")
    require_dtype(op, "per_token_scale", per_token_scale[0], (torch.float32,))
    wanted = (matrices.shape[0], matrices.shape[2])
    require(tuple(scale[0].shape) == wanted, op, f"scale {list(scale[0].shape)}", f"{wanted}")
    fits = tuple(per_token_scale[0].shape) == (rows.shape[0],)
    require(fits, op, f"per_token_scale {list(per_token_scale[0].shape)}", "one for each row")
    by_row = scale[0].float().repeat_interleave(sizes, 0)
    return (sums.float() * by_row * per_token_scale[0][:, None]).to(dtype)


def _group_sizes(
    op: str, group_list: torch.Tensor | None, kind: int | None, groups: int, rows: int
) -> torch.Tensor:
    require(groups <= _MAX_GROUPS, op, f"{groups} groups", "at most 1024")
    assert group_list is not None
    require_dtype(op, "group_list", group_list, (torch.int64,))
    require(tuple(group_list.shape) == (groups,), op, f"{list(group_list.shape)}", f"[{groups}]")
    if kind == 1:
        require(groups > 1, op, "sizes of one group", "more than one")
        sizes = group_list
    else:
        sizes = group_list.diff(prepend=torch.zeros(1).long())
    require(
        bool((sizes >= 0).all()) and int(sizes.sum()) == rows,
        op,
        f"group_list={group_list.tolist()}",
        f"sizes >= 0 that sum to {rows}",
    )
    return sizes


def _products(rows: torch.Tensor, matrices: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    parts = rows.split(sizes.tolist())
    return torch.cat([part @ matrices[g] for g, part in enumerate(parts)])


def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    codes = torch.stack((packed & 0xF, packed >> 4), -1).flatten(-2).long()
    magnitude = torch.tensor(_FP4_MAGNITUDES)[codes & 7]
    return torch.where(codes > 7, -magnitude, magnitude)


def _microscaled(op: str, values: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    require_dtype(op, "powers of two", pairs, (torch.uint8,))
    wanted = (*values.shape[:-1], -(-values.shape[-1] // 64), 2)
    require(tuple(pairs.shape) == wanted, op, f"powers {list(pairs.shape)}", f"{wanted}")
    factors = torch.exp2(pairs.flatten(-2).float() - 127).repeat_interleave(32, -1)
    return values.float() * factors[..., : values.shape[-1]]


def _spread(
    op: str, scale: torch.Tensor, shape: torch.Size, block: tuple[int, int]
) -> torch.Tensor:
    require_dtype(op, "scales of blocks", scale, (torch.float32,))
    wanted = (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))
    require(tuple(scale.shape) == wanted, op, f"scales {list(scale.shape)}", f"{wanted}")
    spread = scale.repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
    return spread[..., : shape[-2], : shape[-1]]
