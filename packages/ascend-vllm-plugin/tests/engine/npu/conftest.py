"""The simulated NPU for this process. It changes torch, so only the session engine-npu comes here.

The fixtures that share checkpoints and engines are those of the folder above. One engine is alive
at a time, and an engine start takes seconds, so tests of the same settings follow each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ascend_ops_core.devices import use_family

from ..harness import Checkpoints, EnginePool
from . import report

FAMILY = "A3"


@pytest.fixture(scope="session", autouse=True)
def _device() -> Iterator[None]:
    """Install the device, and leave a report of what was called beside the session's records."""
    from ascend_ops_core.testing import simulated_npu

    assert "ASCEND_SIMULATED_NPU" in os.environ, "run these tests with ./tools/dev engine-npu"
    simulated_npu.install_from_environment()
    yield
    records = os.environ.get("ASCEND_PROOFS")
    if records:
        report.write(Path(records).with_name("engine-npu-calls.json"))


@pytest.fixture(scope="session")
def engines(checkpoints: Checkpoints, in_process: None) -> Iterator[EnginePool]:
    """Engines whose caches keep the model's dtype, which the float32 bars of the tests need."""
    pool = EnginePool(checkpoints, {"cache_dtype": "model"})
    yield pool
    pool.close()


@pytest.fixture
def family() -> Iterator[None]:
    """Lets a test choose another device family through an engine's `additional_config`."""
    yield
    use_family(FAMILY)
