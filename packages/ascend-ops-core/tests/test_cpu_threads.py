"""Threads of numba's pool beside torch's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba")

STARTED = """
import torch
from ascend_ops_core.cpu_threads import follow_torch
torch.set_num_threads = None
follow_torch()
import numba
print(torch.get_num_threads(), numba.get_num_threads())
"""


def test_the_start_of_numbas_pool_leaves_the_number_of_torchs_threads() -> None:
    """A pool of two told OpenMP so, and torch had two threads from then on."""
    variables = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", STARTED], env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "1"]
