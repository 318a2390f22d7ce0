"""What the batch-invariance tests of definitions and of kernels share."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch

BATCHES = (1, 2, 3, 17, 65)
SIZES = ((65, 33), (150, 40))


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    kind = {2: torch.int16, 4: torch.int32}[one.element_size()]
    return torch.equal(one.contiguous().view(kind), other.contiguous().view(kind))


def _assert_rows_invariant(
    op: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor, batches: tuple[int, ...]
) -> None:
    alone = op(rows[:1])[0]
    for batch in batches:
        # 65 rows are two tiles of the float32 products and of every reduction.
        for position in sorted({0, batch // 2 if batch < 65 else 63, batch - 1}):
            # Company that would show in a shared sum: of another magnitude.
            company = rows[torch.arange(1, batch + 1) % len(rows)] * 100
            company[position] = rows[0]
            got = op(company)[position]
            assert _same_bits(got, alone), f"row {position} of {batch} differs from the row alone"


@pytest.fixture
def assert_rows_invariant() -> Callable[..., None]:
    """Fail unless a row's result has the same bits alone and anywhere in batches of each size."""

    def check(
        op: Callable[[torch.Tensor], torch.Tensor],
        rows: torch.Tensor,
        batches: tuple[int, ...] = BATCHES,
    ) -> None:
        _assert_rows_invariant(op, rows, batches)

    return check


def _operations(mm, bmm, addmm, linear, mean, rms_norm, softmax, sizes, dtype):  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(7)

    def new(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    inner, columns = sizes
    y, bias, weight = new(inner, columns), new(columns), new(columns, inner)
    gain, stack = new(inner), new(3, inner, columns)
    return new(66, inner), {
        "mm": lambda x: mm(x, y),
        "bmm rows": lambda x: bmm(x.expand(3, *x.shape), stack).transpose(0, 1),
        "bmm batches": lambda x: bmm(x[:, None], y.expand(len(x), *y.shape)),
        "addmm": lambda x: addmm(bias, x, y, 0.5, 2.0),
        "linear": lambda x: linear(x, weight, bias),
        "linear without bias": lambda x: linear(x, weight, None),
        "mean": lambda x: mean(x, -1, True),
        "mean of columns": lambda x: mean(x.T, 0, False)[:, None],
        "rms_norm": lambda x: rms_norm(x, gain, 1e-6),
        "softmax": lambda x: softmax(x, -1),
        "softmax of columns": lambda x: softmax(x.T, 0).T,
    }


OPERATIONS = (
    "mm",
    "bmm rows",
    "bmm batches",
    "addmm",
    "linear",
    "linear without bias",
    "mean",
    "mean of columns",
    "rms_norm",
    "softmax",
    "softmax of columns",
)


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@pytest.fixture(params=OPERATIONS)
def operation(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=SIZES, ids=str)
def sizes(request: pytest.FixtureRequest) -> tuple[int, int]:
    pair: tuple[int, int] = request.param
    return pair


@pytest.fixture
def rows_and_call(
    operation: str, sizes: tuple[int, int], dtype: torch.dtype
) -> Callable[..., tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]]:
    """Rows, and the operation by the ``reference`` or the ``kernels`` modules of the family."""

    def made(kind: str) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
        family = "ascend_ops_core.ops.batch_invariant"
        products = importlib.import_module(f"{family}.products.{kind}")
        reductions = importlib.import_module(f"{family}.reductions.{kind}")
        calls = [
            getattr(module, f"{name}_batch_invariant")
            for module, names in (
                (products, ("mm", "bmm", "addmm", "linear")),
                (reductions, ("mean", "rms_norm", "softmax")),
            )
            for name in names
        ]
        rows, table = _operations(*calls, sizes, dtype)
        assert set(table) == set(OPERATIONS)
        return rows, table[operation]

    return made


@pytest.fixture
def rowwise_dot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter multiply tiles row by row.

    It calls numpy's matrix product, in which the bits of a row depend on where it stands in the
    tile; a matrix unit treats all rows of a tile alike.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def wide(operand):  # type: ignore[no-untyped-def]
        if operand.dtype.scalar == tl.bfloat16:
            return (operand.data.astype(np.uint32) << 16).view(np.float32)
        return operand.data.astype(np.float32)

    def create_dot(self, a, b, total, *rest):  # type: ignore[no-untyped-def]
        columns = wide(b)
        rows = np.stack([row.copy() @ columns for row in wide(a)])
        return TensorHandle(rows + total.data, total.dtype)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
