"""Kernels that are called apart: what they return, write and raise, and where their code is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from ascend_ops_core.cpu_apart import apart
from numba import njit, prange, types
from numba.core.errors import TypingError


@njit(cache=True)
def scaled(row, by):  # type: ignore[no-untyped-def]
    """Scale a row in place; return its sum and its first value."""
    if row.shape[0] == 0:
        raise ValueError("an empty row")
    total = 0.0
    for i in range(row.shape[0]):
        row[i] *= by
        total += row[i]
    return total, row[0]


@njit(cache=True)
def halved(row):  # type: ignore[no-untyped-def]
    return row / 2


@njit(cache=True)
def following(number):  # type: ignore[no-untyped-def]
    return number + 1


_scaled, _halved, _following = apart(scaled), apart(halved), apart(following)


@njit(cache=True)
def following_twice(number):  # type: ignore[no-untyped-def]
    return _following(np.uint64(number)) + _following(np.int64(number))


@njit(cache=True)
def all_scaled(rows, by):  # type: ignore[no-untyped-def]
    total = 0.0
    for r in range(rows.shape[0]):
        one, first = _scaled(rows[r], by)
        total += one + first
    return total


@njit(cache=True, parallel=True)
def all_scaled_in_parallel(rows, by, totals):  # type: ignore[no-untyped-def]
    for r in prange(rows.shape[0]):
        totals[r], _ = _scaled(rows[r], by)


@njit(cache=True)
def quartered(row):  # type: ignore[no-untyped-def]
    return _halved(_halved(row))


def test_results_and_written_arrays_are_those_of_the_kernel() -> None:
    rows = np.arange(6.0).reshape(2, 3) + 1
    assert all_scaled(rows, 2.0) == 2 * 21 + 2 * (1 + 4)
    assert rows.tolist() == [[2, 4, 6], [8, 10, 12]]
    # Another type of number is another code.
    assert all_scaled(rows.astype(np.float32), 2) == 2 * 42 + 2 * (2 + 8)


def test_a_new_array_outlives_the_call() -> None:
    for size in (0, 1, 1000):
        row = np.arange(float(size))
        for _ in range(50):
            assert quartered(row).tolist() == (row / 4).tolist()


def test_an_error_of_the_kernel_reaches_python() -> None:
    with pytest.raises(ValueError, match="an empty row"):
        all_scaled(np.empty((2, 0)), 1.0)


def test_threads_call_it_as_well() -> None:
    rows, totals = np.ones((64, 5)), np.zeros(64)
    all_scaled_in_parallel(rows, 3.0, totals)
    assert (rows == 3).all()
    assert (totals == 15).all()


def test_the_caller_holds_no_copy() -> None:
    # Anew, since what comes out of a cache cannot be looked at.
    fresh = njit(all_scaled.py_func)
    fresh(np.ones((1, 1)), 1.0)
    (text,) = fresh.inspect_llvm().values()
    defined = [line for line in text.splitlines() if line.startswith("define")]
    assert any("all_scaled" in line for line in defined)
    assert not any("scaled" in line and "all_scaled" not in line for line in defined)
    assert "apart." in text


def test_indices_of_either_sign_share_a_code() -> None:
    assert following_twice(3) == 8
    assert following.signatures == [(types.int64,)]


def test_a_wrong_number_of_arguments_is_refused() -> None:
    @njit
    def wrong(row):  # type: ignore[no-untyped-def]
        return _scaled(row)

    with pytest.raises(TypingError, match="missing a required argument: 'by'"):
        wrong(np.ones(3))


CHAIN = """
from ascend_ops_core.cpu_apart import apart
from numba import njit

@njit(cache=True)
def add(x):
    return x + 1

_add = apart(add)

@njit(cache=True)
def twice(x):
    return 2 * _add(x)

@njit(cache=True)
def four_times(x):
    return 2 * twice(x)
"""


def run(folder: Path, name: str) -> str:
    """The result of one kernel in a process of its own, and what that compiled."""
    program = (
        f"import cpu_chain as c; print(c.{name}(1), "
        "*[sum(k.stats.cache_misses.values()) for k in (c.add, c.twice, c.four_times)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_caller_of_what_came_from_the_cache_loads_what_lies_apart(tmp_path: Path) -> None:
    (tmp_path / "cpu_chain.py").write_text(CHAIN)
    assert run(tmp_path, "twice") == "4 1 1 0"
    # Compiled with one that is loaded, and then loaded without anything else.
    assert run(tmp_path, "four_times") == "8 0 0 1"
    assert run(tmp_path, "four_times") == "8 0 0 0"
