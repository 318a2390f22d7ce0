"""Lowered kernels on the CPU: values, tails, several programs, and what cannot run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_ops_core.launch import Launch
from ascend_ops_core.testing import lowered
from ascend_ops_core.testing.lowered import LoweredRunner, NotRunnableError

Kernel = Callable[[str], Any]


@pytest.fixture
def runner(tmp_path: Path) -> LoweredRunner:
    """Return a runner for A2, or skip where its programs are not installed."""
    reason = lowered.missing()
    if reason:
        pytest.skip(reason)
    return LoweredRunner("A2", tmp_path)


@pytest.mark.compile
def test_every_program_of_a_grid_stride_loop_runs(kernel: Kernel, runner: LoweredRunner) -> None:
    x, y = torch.randn(2, 5 * 64)
    out = torch.full((5 * 64,), torch.nan)
    arguments = {"x_ptr": x, "y_ptr": y, "out_ptr": out, "programs": 5}
    runner.run(Launch(kernel("add"), 2, arguments, {"BLOCK": 64}))
    assert torch.equal(out, x + y)


@pytest.mark.compile
def test_launch_may_name_arguments_in_any_order(kernel: Kernel, runner: LoweredRunner) -> None:
    x, y = torch.randn(2, 64)
    out = torch.full((64,), torch.nan)
    arguments = {"programs": 1, "out_ptr": out, "y_ptr": y, "x_ptr": x}
    runner.run(Launch(kernel("add"), 1, arguments, {"BLOCK": 64}))
    assert torch.equal(out, x + y)


@pytest.mark.compile
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tail_is_not_written(kernel: Kernel, runner: LoweredRunner, dtype: torch.dtype) -> None:
    memory = torch.randn(200).to(dtype)
    x = memory[3:]  # starts inside its storage
    out = torch.full((128,), 7.0, dtype=dtype)
    arguments = {"x_ptr": x, "out_ptr": out, "scale": 0.3, "count": 65}
    runner.run(Launch(kernel("scale_tail"), 1, arguments, {"BLOCK": 128}))
    scale = torch.tensor(0.3, dtype=torch.float32)
    assert torch.equal(out[:65], (x[:65].float() * scale).to(dtype))
    assert torch.equal(out[65:], torch.full((63,), 7.0, dtype=dtype))


@pytest.mark.compile
def test_matmul_in_bfloat16(kernel: Kernel, runner: LoweredRunner) -> None:
    a, b = torch.randn(32, 64).bfloat16(), torch.randn(32, 64).bfloat16()
    out = torch.full((32, 32), torch.nan)
    arguments = {"a_ptr": a, "b_ptr": b, "out_ptr": out}
    runner.run(Launch(kernel("matmul"), 1, arguments, {"K": 64, "N": 32, "BLOCK": 32}))
    torch.testing.assert_close(out, a.float() @ b.float().T, rtol=1e-5, atol=1e-5)


@pytest.mark.compile
def test_calls_of_the_ascend_library_cannot_run(kernel: Kernel, runner: LoweredRunner) -> None:
    x = torch.randn(64)
    arguments = {"x_ptr": x, "out_ptr": torch.empty(64)}
    with pytest.raises(NotRunnableError, match="cumsum"):
        runner.run(Launch(kernel("running_sum"), 1, arguments, {"BLOCK": 64}))


@pytest.mark.compile
def test_kernel_that_is_not_lowered(kernel: Kernel, runner: LoweredRunner) -> None:
    arguments = {"x_ptr": torch.randn(64), "out_ptr": torch.empty(64)}
    with pytest.raises(NotRunnableError, match="has no attribute 'maximal'"):
        runner.run(Launch(kernel("misspelt"), 1, arguments, {"BLOCK": 64}))


def test_absent_programs_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lowered, "compiler_missing", lambda: "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "mlir-opt-19, mlir-translate-19" in lowered.missing()
    assert "Debian: mlir-19-tools" in lowered.missing()
    monkeypatch.setattr(lowered, "compiler_missing", lambda: "triton-ascend is not installed")
    assert lowered.missing() == "not present, because triton-ascend is not installed"
