"""The sample kernels, and results that stay out of the user's cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ascend_ops_core.cli.compile import load_kernel
from ascend_ops_core.testing.compiler.toolchain import CACHE_VARIABLE, toolchain

SAMPLES = Path(__file__).parent / "kernels.py"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the empty cache folder of this test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    toolchain.cache_clear()
    return folder


@pytest.fixture
def samples() -> Path:
    """Return the file with the sample kernels."""
    return SAMPLES


@pytest.fixture
def kernel() -> Callable[[str], Any]:
    """Return a function that gives a sample kernel by name."""
    return lambda name: load_kernel(f"{SAMPLES}:{name}")
