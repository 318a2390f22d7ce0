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

HIGH_APART = """
from ascend_low.cpu_low import add
from ascend_ops_core.cpu_apart import apart
from numba import njit

_add = apart(add)

@njit(cache=True)
def twice(x):
    return 2 * _add(x)
"""

AS_OPERATORS_DO = """
from ascend_ops_core.cpu_kernels import CpuKernels
twice = CpuKernels("ascend_high.cpu_high").load().twice
"""

# As operators do, but without torch, which takes seconds to import.
ALONE = """
from ascend_ops_core.cpu_cache import forget_stale
from ascend_high import cpu_high
forget_stale(cpu_high)
twice = cpu_high.twice
"""

PRINT = "print(twice(1), sum(twice.stats.cache_misses.values()), end='')"

BY_SOURCES = "ascend_ops_core.cpu_cache.BySources,UserProvidedCacheLocator"


def write(root: Path, number: int, high: str = HIGH) -> Path:
    """A kernel that adds a number, and one of another package that calls it."""
    for package, module, text in (("low", "cpu_low", LOW), ("high", "cpu_high", high)):
        file = root / f"ascend_{package}" / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(number=number))
    return root


def run(folder: Path, variables: dict[str, str], load: str = ALONE) -> str:
    """The result of the second kernel, and how many were compiled."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CACHE")}
    environment = {**kept, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    made = subprocess.run(
        [sys.executable, "-c", load + PRINT],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


@pytest.mark.parametrize(
    ("place", "load", "high"),
    [
        ({}, AS_OPERATORS_DO, HIGH),
        ({"NUMBA_CACHE_DIR": "cache"}, ALONE, HIGH),
        ({"NUMBA_CACHE_DIR": "cache"}, ALONE, HIGH_APART),
    ],
)
def test_a_called_kernel_of_another_package_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: dict[str, str], load: str, high: str
) -> None:
    """Its own file being as before; beside the sources, and where the user wants the cache."""
    monkeypatch.chdir(tmp_path)
    sources = write(tmp_path / "sources", 1, high)
    assert run(sources, place, load) == "4 1"
    assert run(sources, place, load) == "4 0"
    (sources / "ascend_low" / "cpu_low.py").write_text(LOW.format(number=10))
    assert run(sources, place, load) == "22 1"


@pytest.mark.parametrize("high", [HIGH, HIGH_APART], ids=["inlined", "apart"])
def test_installations_of_the_same_sources_share_a_cache(tmp_path: Path, high: str) -> None:
    shared = {
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "NUMBA_CACHE_LOCATOR_CLASSES": BY_SOURCES,
    }
    first, second, other = (
        write(tmp_path / str(i), number, high) for i, number in enumerate((1, 1, 2))
    )
    assert run(first, shared) == "4 1"
    assert run(second, shared) == "4 0"
    assert run(other, shared) == "6 1"
    assert run(first, shared) == "4 0"
    assert not list(first.rglob("*.nbi"))
