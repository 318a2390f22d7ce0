"""The interpreter session computes as hardware does and sees what a kernel does to memory."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.launch import Launch
from ascend_ops_core.testing.guards import fenced_allocations, guarded
from ascend_ops_core.testing.interpreter import interpret, interpreter

KERNELS = Path(__file__).parent / "kernels.py"
BF16 = torch.bfloat16


def _run(name: str, arguments: dict[str, Any], constants: dict[str, int]) -> None:
    from ascend_ops_core.cli.compile import load_kernel

    interpret(Launch(load_kernel(f"{KERNELS}:{name}"), 1, arguments, constants))


def _copy(x: torch.Tensor, out: torch.Tensor, count: int, block: int) -> None:
    _run("copy", {"x_ptr": x, "out_ptr": out, "count": count}, {"BLOCK": block})


@pytest.mark.parametrize("value", [None, "0"])
def test_it_refuses_when_kernels_would_be_compiled(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if value is not None:
        monkeypatch.setenv("TRITON_INTERPRET", value)
    with pytest.raises(InvalidInputError, match="TRITON_INTERPRET"), interpreter():
        pass


def _values_to_round() -> torch.Tensor:
    """Ties to either side, values beside them and the edges of the format, of both signs."""
    one = 0x3F800000
    unit, tie = 1 << 16, 1 << 15
    bits = [one + tie - 1, one + tie, one + tie + 1, one + unit + tie - 1, one + unit + tie]
    # The largest finite values round up to infinity; a NaN must stay one.
    bits += [0x3FFFFFFF, 0x7F7FFFFF, 0x7F7F7FFF, 0x7F800001, 0x7FC00000, 0x7FFFFFFF]
    special = torch.tensor([0.0, 1e-45, 1e-39, 1e-38, float("inf")])
    values = torch.cat([torch.tensor(bits, dtype=torch.int32).view(torch.float32), special])
    return torch.cat([values, -values])


@pytest.mark.interpreter
def test_float32_is_rounded_to_the_nearest_even_bfloat16() -> None:
    x = _values_to_round()
    out = torch.empty(len(x), dtype=BF16)
    _copy(x, out, len(x), 64)
    expected = x.to(BF16)
    number = ~expected.isnan()
    assert torch.equal(out.isnan(), ~number)
    assert torch.equal(out[number].view(torch.int16), expected[number].view(torch.int16))


@pytest.mark.interpreter
def test_every_bfloat16_becomes_the_same_float32() -> None:
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(BF16)
    out = torch.empty(len(x))
    _copy(x, out, len(x), 1 << 16)
    torch.testing.assert_close(out, x.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.interpreter
def test_dot_of_bfloat16_multiplies_numbers() -> None:
    x = torch.randn(16, 16).to(BF16)
    y = torch.randn(16, 16).to(BF16)
    out = torch.empty(16, 16)
    _run("product", {"x_ptr": x, "y_ptr": y, "out_ptr": out}, {"N": 16})
    torch.testing.assert_close(out, x.float() @ y.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.interpreter
def test_a_launch_leaves_triton_as_it_was() -> None:
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    owners = (
        interpreter,
        interpreter.InterpreterBuilder,
        TritonSemantic,
        *(tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.block_type),
    )
    launched: list[Any] = [torch.ones(4), torch.empty(4, dtype=BF16), 4, 4]
    # Triton itself copies to a class what it inherits, when it is first asked what it replaces.
    _copy(*launched)
    before = [dict(vars(owner)) for owner in owners]
    _copy(*launched)
    for owner, was in zip(owners, before, strict=True):
        assert vars(owner).keys() == was.keys()
        assert [name for name in was if vars(owner)[name] is not was[name]] == []


@pytest.fixture
def unmended() -> ModuleType:
    """Return Triton's interpreter as it is installed."""
    spec = importlib.util.find_spec("triton.runtime.interpreter")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Once Triton is right by itself one of these two fails, and its part of the mending can go.


@pytest.mark.interpreter
def test_rounding_needs_mending(unmended: ModuleType) -> None:
    import numpy as np
    import triton.language as tl

    x = unmended.TensorHandle(np.array([1 + 2**-8 + 2**-9], np.float32), tl.float32)
    bits = unmended.InterpreterBuilder().cast_impl(x, tl.bfloat16).data
    assert bits.tolist() == [0x3F80]


@pytest.mark.interpreter
def test_dot_needs_mending(unmended: ModuleType) -> None:
    import numpy as np
    import triton.language as tl

    two = unmended.TensorHandle(np.full((16, 16), 0x4000, np.uint16), tl.bfloat16)
    zero = unmended.TensorHandle(np.zeros((16, 16), np.float32), tl.float32)
    product = unmended.InterpreterBuilder().create_dot(two, two, zero, None, 0).data
    assert (product == 16 * 0x4000**2).all()


@pytest.mark.interpreter
def test_what_a_kernel_leaves_unwritten_is_nan() -> None:
    x = torch.ones(8)
    with fenced_allocations():
        out = torch.empty(8)
        _copy(x, out, 5, 8)
    assert torch.equal(out.isnan(), torch.arange(8) >= 5)
    assert torch.equal(out[:5], x[:5])


@pytest.mark.interpreter
@pytest.mark.parametrize("written", [9, 16])
def test_a_write_behind_an_argument_or_an_allocation_is_caught(written: int) -> None:
    (x, argument), guards = guarded((torch.ones(16), torch.zeros(8)))
    with fenced_allocations() as allocated:
        result = torch.empty(8)
        _copy(x, argument, written, 16)
        _copy(x, result, written, 16)
    guards[0].assert_fences()
    for overrun in (guards[1], *allocated):
        with pytest.raises(AssertionError, match="out of bounds"):
            overrun.assert_fences()


@pytest.mark.interpreter
def test_a_read_behind_an_argument_is_nan() -> None:
    (x,), _ = guarded((torch.ones(8),))
    out = torch.empty(10)
    _copy(x, out, 10, 16)
    assert torch.equal(out.isnan(), torch.arange(10) >= 8)
