"""Instructions that tiles of products are made of, emitted for LLVM.

A builder comes first everywhere; vectors have as many lanes as the callers say.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

# Where LLVM's prefetch puts a line. One core of a Zen 4 read 19.5 GB/s so in tiles of four tokens,
# and 12.7 by the first level, whose few places for lines on their way the loads want as well.
_SECOND_LEVEL = 2

_F32, _I32, _I16, _I8 = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(8)


def row_places(builder: Any, data: Any, first: Any, width: Any, count: int) -> list[Any]:
    """Where some rows of a contiguous matrix begin."""
    indices = [builder.add(first, ir.Constant(first.type, i)) for i in range(count)]
    return [builder.gep(data, [builder.mul(index, width)]) for index in indices]


def add_pairs(builder: Any, sums: Any, a: Any, b: Any) -> Any:
    """Lane by lane the sum of two products of bfloat16, added in float32."""
    kind = ir.FunctionType(sums.type, [sums.type, a.type, b.type])
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [sums, a, b])


def spread(builder: Any, value: Any, lanes: int) -> Any:
    """A value in every lane."""
    kind = ir.VectorType(value.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)


def load_bits(builder: Any, row: Any, at: Any, lanes: int, mask: Any) -> Any:
    """The bits of some bfloat16, or of float32; 0 where a mask excludes a lane."""
    element = row.type.pointee
    vector = ir.VectorType(element, lanes)
    place = builder.bitcast(builder.gep(row, [at]), vector.as_pointer())
    size = 2 if element == _I16 else 4
    if mask is None:
        return builder.load(place, align=size)
    kind = ir.FunctionType(vector, [place.type, _I32, mask.type, vector])
    name = f"v{lanes}{'i16' if element == _I16 else 'f32'}"
    function = cgutils.get_or_insert_function(
        builder.module, kind, f"llvm.masked.load.{name}.p0{name}"
    )
    return builder.call(function, [place, _I32(size), mask, ir.Constant(vector, None)])


def load_floats(builder: Any, row: Any, at: Any, lanes: int, mask: Any) -> Any:
    """Some float32, or bfloat16 as float32; 0 where a mask excludes a lane."""
    values = load_bits(builder, row, at, lanes, mask)
    if row.type.pointee == _F32:
        return values
    bits = ir.VectorType(_I32, lanes)
    shifted = builder.shl(builder.zext(values, bits), ir.Constant(bits, [16] * lanes))
    return builder.bitcast(shifted, ir.VectorType(_F32, lanes))


def fetch(builder: Any, address: Any) -> None:
    """Bring a line to the second-level cache; an address outside the memory does nothing."""
    pointer = builder.bitcast(address, _I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    # Read, where to, data.
    builder.call(function, [pointer, _I32(0), _I32(_SECOND_LEVEL), _I32(1)])


def lane_sums(builder: Any, vectors: list[Any], lanes: int) -> list[Any]:
    """Sums over the lanes of many vectors, each step halving the vectors for all at once."""
    results: list[Any] = []
    for start in range(0, len(vectors), lanes):
        group = vectors[start : start + lanes]
        size = 1 << (len(group) - 1).bit_length()
        group += [ir.Constant(group[0].type, None)] * (size - len(group))
        distance = 1
        while distance < lanes:
            group = [
                _fold(builder, group[i], group[min(i + 1, len(group) - 1)], distance, lanes)
                for i in range(0, len(group), 2)
            ]
            distance *= 2
        results.append(group[0])
    return results


def _fold(builder: Any, a: Any, b: Any, distance: int, lanes: int) -> Any:
    """Lanes without the bit ``distance`` get a sum of ``a``'s pair, the others of ``b``'s."""
    here = [lane + (lanes if lane & distance else 0) for lane in range(lanes)]
    there = [lane ^ distance for lane in here]
    mask = ir.VectorType(_I32, lanes)
    return builder.fadd(
        builder.shuffle_vector(a, b, ir.Constant(mask, here)),
        builder.shuffle_vector(a, b, ir.Constant(mask, there)),
    )


def store_sums(
    builder: Any, totals: list[Any], out_rows: list[Any], column: Any, rows: int
) -> None:
    """Store the lanes of the totals, ``rows`` of them for each token."""
    lanes = totals[0].type.count
    for i, row in enumerate(out_rows):
        vector, lane = totals[i * rows // lanes], i * rows % lanes
        chosen = ir.Constant(ir.VectorType(_I32, rows), list(range(lane, lane + rows)))
        part = builder.shuffle_vector(vector, vector, chosen)
        place = builder.bitcast(builder.gep(row, [column]), part.type.as_pointer())
        builder.store(part, place, align=4)
