"""Quantisation: per row, per block, and microscaling (OCP MX v1.0).

=============  ==========================================================================
folder         what shares a scale
=============  ==========================================================================
``rows``       a row (token, or token and head), or a whole tensor with a given scale
``blocks``     128 columns of one row, or 128 x 128 elements
``mx``         32 elements, with a power of two as scale (MXFP8, MXFP4)
=============  ==========================================================================

Rules that hold in all of them:

- Values are divided by the scale in float32 and rounded half to even; what passes the largest
  value of the format becomes the largest value.
- A row or block of zeros has scale 0 (for powers of two: the smallest one) and zeros as values.
- A row or block with NaN or infinity has an infinite scale (for powers of two: NaN) and zeros as
  values, so that all of it is NaN after dequantisation instead of being plausible and wrong.
- A scale that is a power of two travels as ``uint8``: its exponent plus 127, 255 for NaN. That is
  the bit pattern of ``torch.float8_e8m0fnu``, so ``.view()`` turns one into the other.

Devices other than A5 have no 8-bit floats: they quantise to int8, and unpack FP4 weights.
"""

from __future__ import annotations

from ascend_ops_core.ops.quantization.blocks import block_dequantize, block_quantize
from ascend_ops_core.ops.quantization.mx import (
    fp4_pack,
    fp4_unpack,
    mxfp4_dequantize,
    mxfp4_quantize,
    mxfp8_dequantize,
    mxfp8_quantize,
)
from ascend_ops_core.ops.quantization.rows import (
    dynamic_quantize,
    per_token_head_quantize,
    static_quantize,
)

__all__ = [
    "block_dequantize",
    "block_quantize",
    "dynamic_quantize",
    "fp4_pack",
    "fp4_unpack",
    "mxfp4_dequantize",
    "mxfp4_quantize",
    "mxfp8_dequantize",
    "mxfp8_quantize",
    "per_token_head_quantize",
    "static_quantize",
]
