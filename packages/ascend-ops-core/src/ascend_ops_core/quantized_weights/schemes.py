"""The schemes that checkpoints use, by the dialects that write them.

Sources: the tensors' names and dtypes as vLLM 0.27.1 reads DeepSeek's and compressed-tensors'
checkpoints (``quantization/fp8.py``, ``models/deepseek_v4/quant_config.py``,
``quantization/compressed_tensors``), ModelSlim's as its documentation and vllm-ascend's linear
methods describe them.
"""

from __future__ import annotations

import torch

from ascend_ops_core.quantized_weights.formats import (
    Codes,
    Role,
    Rows,
    Scheme,
    StoredTensor,
    WeightFormat,
    in_pairs,
    in_row_pairs,
    one_value,
    per_block,
    per_channel,
    whole,
)

__all__ = ["MODELSLIM", "fp8_block", "fp8_scaled", "int8_channel", "mxfp4", "mxfp8"]

MX_COLUMNS = 32
"""Columns that share a power of two (OCP MX v1.0)."""

_E4M3 = torch.float8_e4m3fn
_POWERS = (torch.float8_e8m0fnu, torch.uint8)
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_BYTES = (torch.int8, torch.uint8, torch.float4_e2m1fn_x2)


def fp8_block(scale: str, *, powers: bool, block: tuple[int, int] = (128, 128)) -> Scheme:
    """DeepSeek's float8_e4m3fn with a scale for each block of rows and columns.

    Args:
        scale: suffix of the scales: ``scale`` (V4) or ``weight_scale_inv`` (V3), which is no
            inverse: values are multiplied by it.
        powers: scales are powers of two in one byte (e8m0). Where they are float32, a checkpoint
            may store them as powers of two in a byte as well.
        block: rows and columns of a block.
    """
    kind = "e8m0" if powers else "float32"
    dtypes = _POWERS if powers else (torch.float32, torch.float8_e8m0fnu)
    tensors = (
        StoredTensor("weight", Role.VALUES, (_E4M3,), whole),
        StoredTensor(scale, Role.SCALE, dtypes, per_block(*block)),
    )
    form = WeightFormat(Codes.E4M3, *block, powers=powers)
    return Scheme(f"fp8 {block[0]}x{block[1]} ({kind} scales)", form, tensors, Rows.FP8_BLOCK)


def mxfp8(scale: str) -> Scheme:
    """float8_e4m3fn with a power of two for 32 columns of a row."""
    tensors = (
        StoredTensor("weight", Role.VALUES, (_E4M3,), whole),
        StoredTensor(scale, Role.SCALE, _POWERS, per_block(1, MX_COLUMNS)),
    )
    return Scheme("mxfp8", WeightFormat(Codes.E4M3, 1, MX_COLUMNS, True), tensors, Rows.MXFP8)


def mxfp4(weight: str, scale: str, rows: Rows) -> Scheme:
    """FP4 with a power of two for 32 columns of a row, two columns in a byte."""
    tensors = (
        StoredTensor(weight, Role.VALUES, _BYTES, in_pairs),
        StoredTensor(scale, Role.SCALE, _POWERS, per_block(1, MX_COLUMNS)),
    )
    return Scheme("mxfp4", WeightFormat(Codes.E2M1, 1, MX_COLUMNS, True), tensors, rows)


def fp8_scaled(*, channels: bool, static_input: bool) -> Scheme:
    """compressed-tensors' float8_e4m3fn with a scale for each output channel, or one in all."""
    tensors = [
        StoredTensor("weight", Role.VALUES, (_E4M3,), whole),
        StoredTensor("weight_scale", Role.SCALE, _FLOATS, per_channel if channels else one_value),
    ]
    if static_input:
        tensors.append(StoredTensor("input_scale", Role.CHECKED, _FLOATS, one_value))
    form = WeightFormat(Codes.E4M3, 1 if channels else 0, 0)
    kind = "channel" if channels else "tensor"
    return Scheme(f"fp8 per {kind}", form, tuple(tensors), Rows.FP8_DYNAMIC)


def int8_channel(*, static_input: bool = False) -> Scheme:
    """compressed-tensors' int8 with a scale for each output channel."""
    tensors = [
        StoredTensor("weight", Role.VALUES, (torch.int8,), whole),
        StoredTensor("weight_scale", Role.SCALE, _FLOATS, per_channel),
    ]
    if static_input:
        tensors.append(StoredTensor("input_scale", Role.INPUT_SCALE, _FLOATS, one_value))
    rows = Rows.INT8_STATIC if static_input else Rows.INT8_DYNAMIC
    kind = "static" if static_input else "dynamic"
    return Scheme(f"int8 {kind}", WeightFormat(Codes.INT8, 1, 0), tuple(tensors), rows)


def _w8a8_dynamic() -> Scheme:
    tensors = (
        StoredTensor("weight", Role.VALUES, (torch.int8,), whole),
        StoredTensor("weight_scale", Role.SCALE, _FLOATS, per_channel),
        StoredTensor("weight_offset", Role.ZERO, _FLOATS, per_channel, optional=True),
    )
    return Scheme("W8A8_DYNAMIC", WeightFormat(Codes.INT8, 1, 0), tensors, Rows.INT8_DYNAMIC)


def _w8a8_static() -> Scheme:
    # (x / input_scale + input_offset) @ w + quant_bias, times deq_scale = input_scale * the
    # weight's scale; quant_bias takes back what the offset added.
    tensors = (
        StoredTensor("weight", Role.VALUES, (torch.int8,), whole),
        StoredTensor(
            "deq_scale", Role.DEQUANTIZATION_SCALE, (torch.float32, torch.int64), per_channel
        ),
        StoredTensor("input_scale", Role.INPUT_SCALE, _FLOATS, one_value),
        StoredTensor("input_offset", Role.CHECKED, (torch.int8, *_FLOATS), one_value),
        StoredTensor("quant_bias", Role.CHECKED, (torch.int32,), per_channel),
        StoredTensor("weight_scale", Role.CHECKED, _FLOATS, per_channel, optional=True),
        StoredTensor("weight_offset", Role.ZERO, _FLOATS, per_channel, optional=True),
    )
    return Scheme("W8A8", WeightFormat(Codes.INT8, 1, 0), tensors, Rows.INT8_STATIC)


def _w4a8_dynamic() -> Scheme:
    def bias(rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
        return (rows, 1), (rows,), (rows, 16)

    tensors = (
        StoredTensor("weight", Role.VALUES, (torch.int8,), in_row_pairs, row_pairs=True),
        StoredTensor("weight_scale", Role.SCALE, _FLOATS, per_channel),
        StoredTensor("weight_offset", Role.ZERO, _FLOATS, per_channel, optional=True),
        # 8 times the sum of the channel: what a kernel with unsigned values has to take back.
        StoredTensor("scale_bias", Role.CHECKED, _FLOATS, bias, optional=True),
    )
    return Scheme("W4A8_DYNAMIC", WeightFormat(Codes.INT4, 1, 0), tensors, Rows.INT8_DYNAMIC)


MODELSLIM: dict[str, Scheme | None] = {
    "FLOAT": None,
    "W8A8": _w8a8_static(),
    "W8A8_DYNAMIC": _w8a8_dynamic(),
    "W4A8_DYNAMIC": _w4a8_dynamic(),
    "W8A8_MXFP8": mxfp8("weight_scale"),
}
"""ModelSlim's words for a tensor, and the scheme of its layer; None for no quantisation."""
