"""Number formats of quantised values in Triton, by integer arithmetic on their bits.

A cast to an 8-bit float is right on A5 but wrong in Triton's interpreter (it rounds without
carrying), and a cast from one crashes the compiler for A5; bits work in all of them. Adding a
large constant and taking it away again rounds half to even at a chosen bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ascend_ops_core.kernels import nearest_int8


@triton.jit
def magnitude(v):
    """``|v|``, infinite for NaN, so that a maximum does not lose it."""
    a = tl.abs(v)
    return tl.where(a < float("inf"), a, float("inf"))


@triton.jit
def divided(v, scale):
    """``v / scale`` for rows; 0 where a row is not finite, and as it is where the scale is 0."""
    q = v / tl.where(scale >= 1.1754943508222875e-38, scale, 1.0)[:, None]
    return tl.where(q == q, q, 0.0)


@triton.jit
def rounded_to_int8(v):
    """A tile of values in [-128, 127] rounded half to even; see :mod:`..tiles`."""
    if v.shape[0] == 1:
        result = tl.reshape(nearest_int8(tl.reshape(v, (v.shape[1],))), (1, v.shape[1]))
    else:
        result = nearest_int8(v)
    return result


@triton.jit
def saturated(v, low, high):
    """``v`` within limits; NaN stays."""
    v = tl.where(v > high, high, v)
    return tl.where(v < low, low, v)


@triton.jit
def e4m3_bits(v):
    """float32 values up to 464 in magnitude as the bits of float8_e4m3fn."""
    bits = v.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # Below 2^-6 the format has a fixed step of 2^-9, which is float32's step at 2^14.
    low = (tl.abs(v) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    normal = (size + 0x7FFFF + ((size >> 20) & 1) - (120 << 23)) >> 20
    code = tl.where(size < (121 << 23), low, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def e4m3_values(bits):
    """Bits of float8_e4m3fn as float32."""
    b = bits.to(tl.int32)
    size = b & 0x7F
    normal = ((size << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(size < 8, size.to(tl.float32) * 0.001953125, normal)
    value = tl.where(size == 0x7F, float("nan"), value)
    return tl.where(b > 0x7F, -value, value)


@triton.jit
def e2m1_codes(v):
    """float32 values below 8 in magnitude as FP4 codes in int32, saturating."""
    bits = v.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # Below 1 the format has a fixed step of 1/2, which is float32's step at 2^22.
    low = (tl.abs(v) + 4194304.0).to(tl.int32, bitcast=True) - 0x4A800000
    normal = (size + 0x1FFFFF + ((size >> 22) & 1) - (126 << 23)) >> 22
    code = tl.where(size < (127 << 23), low, normal)
    code = tl.where(code > 7, 7, code)
    return code | ((bits >> 28) & 8)


@triton.jit
def e2m1_values(codes):
    """FP4 codes in int32 as float32."""
    size = codes & 7
    normal = ((size << 22) + (126 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(size < 2, 0.5 * size.to(tl.float32), normal)
    return tl.where(codes > 7, -value, value)


@triton.jit
def e8m0_code(exponent, amax):
    """Biased exponents below 255 as codes: at least 0, and NaN for an infinite ``amax``."""
    code = tl.where(exponent < 0, 0, exponent)
    return tl.where(amax < float("inf"), code, 255)


@triton.jit
def e8m0_values(code):
    """Codes in int32 as float32 powers of two."""
    # 2^-127 is not a normal float32: its bits are those of half the smallest one.
    bits = tl.where(code == 0, 0x400000, code << 23)
    value = bits.to(tl.float32, bitcast=True)
    return tl.where(code == 255, float("nan"), value)


@triton.jit
def times_inverse_power(v, code):
    """``v`` of rows times 2^(127 - code); 0 where a row is not finite."""
    # 255 stands for NaN: a factor of 0 keeps finite values at 0.
    inverse = tl.where(code == 255, 0, (254 - code) << 23).to(tl.float32, bitcast=True)
    q = v * inverse[:, None]
    return tl.where(q == q, q, 0.0)
