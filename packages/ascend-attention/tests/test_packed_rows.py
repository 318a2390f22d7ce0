"""Packed rows of A5 against loops in Python: bytes of a record, value by value."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
import torch
from ascend_attention.ops.packed_rows import (
    check_packed,
    groups_of,
    packed_bytes,
    quantize_kv_rows,
    reference,
)
from ascend_attention.ops.packed_rows.cases import packed_slab
from ascend_ops_core import InvalidInputError
from ascend_ops_core.cases import Inputs
from ascend_ops_core.devices import facts_of
from ascend_ops_core.registry import find

SIZES = [math.ldexp(8 + m, e - 10) if e else math.ldexp(m, -9) for e in range(16) for m in range(8)]
SIZES.pop()  # the code of NaN


def float8_code(value: float) -> int:
    """Code of the nearest float8_e4m3fn, half to even, from the format's definition."""
    code = min(range(len(SIZES)), key=lambda c: (abs(SIZES[c] - abs(value)), c % 2))
    return code | (0x80 if math.copysign(1, value) < 0 else 0)


def record(row: list[float], rotary: int) -> bytes:
    """A record without its padding."""
    quantised = len(row) - rotary
    values, scales = b"", b""
    for start in range(0, quantised, 64):
        group = row[start : min(start + 64, quantised)]
        if all(math.isfinite(v) for v in group):
            largest = max(abs(v) for v in group)
            power = next(p for p in range(-127, 128) if math.ldexp(448, p) >= largest)
            scales += bytes([power + 127])
            values += bytes(float8_code(math.ldexp(v, -power)) for v in group)
        else:
            scales += b"\xff"
            values += bytes(0 for _ in group)
    rotated = torch.tensor(row[quantised:]).to(torch.bfloat16).view(torch.int16).tolist()
    return values + struct.pack(f"<{rotary}h", *rotated) + scales


@pytest.mark.oracle("ascend_attention::quantize_kv_rows", "records byte by byte in Python")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("count", [0, 1, 3, 17])
@pytest.mark.parametrize(("width", "rotary"), [(2, 0), (64, 16), (131, 65), (200, 6), (512, 64)])
def test_records_equal_loops(width: int, rotary: int, count: int, dtype: torch.dtype) -> None:
    torch.manual_seed(count)
    packed = packed_slab(Inputs(), 6, 4, width, rotary)
    # Groups of very different size, one of zeros.
    rows = torch.randn(count, width) * torch.logspace(-6, 3, width)
    rows[1:2, :64] = 0
    rows = rows.to(dtype)
    place = torch.randperm(24)[:count]
    block, offset = place // 4, place % 4
    block[2::5] = -1
    quantize_kv_rows(packed, rows, block, offset, rotary)
    used = width + rotary + groups_of(width, rotary)
    expected = torch.full_like(packed, 255)
    for n in range(count):
        if block[n] >= 0:
            made = record(rows[n].float().tolist(), rotary)
            expected[block[n], offset[n], :used] = torch.tensor(list(made), dtype=torch.uint8)
    assert torch.equal(packed, expected)


@pytest.mark.parametrize(
    ("value", "power"),
    [
        (448.0, 0),
        (math.nextafter(448.0, 500.0), 0),  # rounds to 448 in float32
        (448.0 + 2**-15, 1),
        (896.0, 1),
        (1e-40, -127),
        (3e38, 120),
        (0.0, -127),
    ],
)
def test_a_scale_is_the_smallest_power_that_fits(value: float, power: int) -> None:
    row = torch.zeros(1, 64)
    row[0, 7] = value
    packed = torch.zeros(1, 1, 128, dtype=torch.uint8)
    zero = torch.zeros(1, dtype=torch.int64)
    quantize_kv_rows(packed, row, zero, zero, 0)
    assert int(packed[0, 0, 64]) == power + 127
    assert bytes(packed[0, 0, :65].tolist()) == record(row[0].tolist(), 0)


def test_reading_gives_back_what_the_format_holds() -> None:
    torch.manual_seed(0)
    rows = torch.randn(50, 512) * 3
    packed = torch.zeros(10, 5, packed_bytes(512, 64), dtype=torch.uint8)
    place = torch.randperm(50)
    quantize_kv_rows(packed, rows, place // 5, place % 5, 64)
    got = reference.unpacked(packed[place // 5, place % 5], 512, 64)
    assert torch.equal(got[:, 448:], rows[:, 448:].bfloat16().float())
    error = (got - rows)[:, :448].abs()
    # Half a unit of three bits of mantissa, or of the smallest step under the group's scale.
    largest = rows[:, :448].unflatten(1, (7, 64)).abs().amax(-1).repeat_interleave(64, 1)
    assert bool((error <= torch.maximum(rows[:, :448].abs() / 16, largest / 448 * 2**-9)).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_group_without_a_number_is_nan_when_read(bad: float) -> None:
    rows = torch.ones(1, 200)
    rows[0, 70] = bad
    packed = torch.zeros(1, 1, packed_bytes(200, 8), dtype=torch.uint8)
    zero = torch.zeros(1, dtype=torch.int64)
    quantize_kv_rows(packed, rows, zero, zero, 8)
    got = reference.unpacked(packed[0], 200, 8)[0]
    assert bool(got[64:128].isnan().all())
    assert bool((torch.cat((got[:64], got[128:])) == 1).all())


def test_sizes_of_records() -> None:
    assert packed_bytes(512, 64) == 640  # vllm-ascend's rows on A5
    assert packed_bytes(256, 64) == 384  # the example of aclnnKvCompressEpilog: at least 323
    assert groups_of(512, 64) == 7
    assert packed_bytes(2, 0) == 128


def _arguments(**changed: Any) -> dict[str, Any]:
    place = torch.zeros(2, dtype=torch.int64)
    plain = {
        "packed": torch.zeros(3, 4, 128, dtype=torch.uint8),
        "rows": torch.ones(2, 64),
        "block": place,
        "offset": place,
        "rotary": 16,
    }
    return plain | changed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"packed": torch.zeros(3, 4, 80, dtype=torch.uint8)}, "80 bytes.*take 81"),
        ({"packed": torch.zeros(3, 4, 128, dtype=torch.int8)}, "packed of torch.int8"),
        ({"packed": torch.zeros(3, 128, dtype=torch.uint8)}, "packed of shape"),
        ({"packed": torch.zeros(3, 4, 129, dtype=torch.uint8)[..., 1:]}, "from byte 1"),
        ({"packed": torch.zeros(3, 4, 256, dtype=torch.uint8)[..., ::2]}, "side by side"),
        ({"rows": torch.ones(2, 64).int()}, "rows of torch.int32"),
        ({"rows": torch.ones(2, 63)}, "63 values, 16 of them.*even number"),
        ({"rotary": 64}, "64 values, 64 of them"),
        ({"rotary": -2}, "-2 of them"),
        ({"block": torch.zeros(3, dtype=torch.int64)}, "block of shape"),
        ({"offset": torch.zeros(2, dtype=torch.int32)}, "offset of torch.int32"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    changed: dict[str, Any], message: str
) -> None:
    arguments = _arguments(**changed)
    with pytest.raises(InvalidInputError, match=message):
        quantize_kv_rows(**arguments)
    assert not arguments["packed"].any()


def test_a_fitting_cache_passes() -> None:
    check_packed(torch.zeros(3, 4, 640, dtype=torch.uint8), 512, 64)


@pytest.mark.parametrize(
    ("family", "width", "reason"),
    [
        ("A5", 512, ""),
        ("A5", 2050, "2050 values, the kernel takes 2048"),
        ("A2", 512, "A2 has no torch.float8_e4m3fn"),
        ("A3", 512, "A3 has no"),
    ],
)
def test_limits_of_the_kernel(family: str, width: int, reason: str) -> None:
    place = torch.empty(3, dtype=torch.int64, device="meta")
    arguments = (
        torch.empty(2, 4, packed_bytes(width, 64), dtype=torch.uint8, device="meta"),
        torch.empty(3, width, device="meta"),
        place,
        place,
        64,
    )
    operator = find("ascend_attention::quantize_kv_rows")
    support = operator.supports("triton", facts_of(family), *arguments)
    assert reason in support.reason
    assert bool(support) == (not reason)
