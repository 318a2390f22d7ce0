"""Packed rows: key-value rows of A5, most of each row in eight bits.

A row of ``D`` values, of which the last ``R`` are rotated, is a record of bytes:

=============================  =================================================================
bytes                          what
=============================  =================================================================
``D - R``                      the values that are not rotated, float8_e4m3fn
``2 * R``                      the rotated values, bfloat16
``ceil((D - R) / 64)``         a scale for every 64 quantised values: exponent of 2 plus 127
up to a multiple of 128        padding, neither written nor read
=============================  =================================================================

640 bytes for DeepSeek-V4's rows (512 values, 64 rotated). It is the record of CANN's
``aclnnKvCompressEpilog`` with ``quantMode`` 1 and ``roundScale`` (ops-transformer's documentation),
in the row of 640 bytes that vllm-ascend allocates on A5. DeepSeek's own records hold the same parts
in 584 bytes, with the scales behind all rows of a block.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.packed_rows.layout import (
    GROUP,
    ROW_UNIT,
    check_row,
    groups_of,
    packed_bytes,
)

__all__ = [
    "GROUP",
    "ROW_UNIT",
    "check_packed",
    "check_row",
    "groups_of",
    "packed_bytes",
    "quantize_kv_rows",
]


def quantize_kv_rows(
    packed: torch.Tensor,
    rows: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    rotary: int,
) -> None:
    """Quantise key-value rows, and write them as records into a paged cache.

    A group's scale is the smallest power of two, at least ``2^-127``, with which all of it fits
    into float8_e4m3fn; values are divided by it in float32 and rounded half to even. A group with
    NaN or infinity gets scale NaN and zeros as values, so that it is NaN when it is read.

    Args:
        packed: ``[B, P, bytes]`` uint8, at least :func:`packed_bytes` of a row, any even strides of
            blocks and rows; written.
        rows: ``[N, D]`` float32, bfloat16 or float16; ``N`` may be 0.
        block: ``[N]`` int32 or int64; padding, negative here or in ``offset``, writes nothing.
        offset: ``[N]`` of ``block``'s dtype, the row within the block.
        rotary: values at the end of a row that stay in bfloat16; 0 or more.

    Raises:
        InvalidInputError: another shape, dtype or stride, or a row that cannot be packed; nothing
            was written then.
        IndexError: on a CPU, a row outside the cache; nothing was written then.

    Source: CANN, ``aclnnKvCompressEpilog``.
    """
    require_shape("rows", rows, None, None)
    require_dtype("rows", rows, FLOATS)
    check_packed(packed, rows.shape[1], rotary)
    require_shape("block", block, rows.shape[0])
    require_dtype("block", block, INDICES)
    require_shape("offset", offset, rows.shape[0])
    require_dtype("offset", offset, (block.dtype,))
    _QUANTIZE_KV_ROWS(packed, rows, block, offset, rotary)


def check_packed(packed: torch.Tensor, width: int, rotary: int) -> None:
    """Refuse a cache that does not hold packed rows of ``width`` values.

    Raises:
        InvalidInputError: another dtype, too few bytes in a row, or memory in which bfloat16 would
            not be aligned.
    """
    check_row(width, rotary)
    require_shape("packed", packed, None, None, None)
    require_dtype("packed", packed, (torch.uint8,))
    least = width + rotary + groups_of(width, rotary)
    if packed.shape[2] < least:
        raise InvalidInputError(
            f"packed rows of {packed.shape[2]} bytes",
            f"{width} values, {rotary} of them rotated, take {least}",
            f"Allocate packed_bytes({width}, {rotary}) bytes.",
        )
    places = (packed.storage_offset(), packed.stride(0), packed.stride(1))
    if packed.stride(2) != 1 or any(place % 2 for place in places):
        raise InvalidInputError(
            f"packed rows with strides {list(packed.stride())} from byte {places[0]}",
            "bytes of a row lie side by side, and rows begin at even bytes",
            "Pass a slab whose blocks and rows have even sizes.",
        )


_QUANTIZE_KV_ROWS = declare(
    __name__,
    "quantize_kv_rows(Tensor(a!) packed, Tensor rows, Tensor block, Tensor offset, int rotary)"
    " -> ()",
    npu=("triton",),
    fake=lambda *args: None,
)
