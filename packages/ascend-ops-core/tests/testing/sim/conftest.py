"""The simulated NPU, for this process. It changes torch, so only the session `sim` comes here."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing import simulated_npu


@pytest.fixture(scope="session", autouse=True)
def _device() -> None:
    simulated_npu.install("A3", devices=2, memory_bytes=64 * 1024**2)
