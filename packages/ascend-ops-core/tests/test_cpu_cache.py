"""A kernel's cached code is not used once a kernel that it calls has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

LOW = """
from numba import njit

@njit(cache=True)
def add(x):
    return x + {number}
"""

HIGH = """
from ascend_low.cpu_low import add
from numba import njit

@njit(cache=True)
def twice(x):
    return 2 * add(x)
"""

MAIN = """
from ascend_ops_core.cpu_kernels import CpuKernels
print(CpuKernels("ascend_high.cpu_high").load().twice(1), end="")
"""


def _run(folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    made = subprocess.run(
        [sys.executable, "-c", MAIN], env=environment, capture_output=True, text=True, check=True
    )
    return made.stdout


def test_a_called_kernel_of_another_package_changes(tmp_path: Path) -> None:
    low, high = tmp_path / "ascend_low" / "cpu_low.py", tmp_path / "ascend_high" / "cpu_high.py"
    low.parent.mkdir()
    high.parent.mkdir()
    low.write_text(LOW.format(number=1))
    high.write_text(HIGH)
    assert _run(tmp_path) == "4"
    cached = {one: one.stat().st_mtime_ns for one in high.parent.rglob("*.nbi")}
    assert cached
    assert _run(tmp_path) == "4"
    assert {one: one.stat().st_mtime_ns for one in high.parent.rglob("*.nbi")} == cached
    low.write_text(LOW.format(number=10))
    assert _run(tmp_path) == "22"
