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
from ascend_ops_core.testing.forked_programs import ForkedPrograms

from ..harness import Checkpoints, EnginePool
from . import report

FAMILY = "A3"
PROFILED_TOKENS = 32
# What a program, its engine and its workers import in the end.
IMPORTED_FIRST = (
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.gpu_model_runner",
    "ascend_vllm_plugin.npu.worker",
    "ascend_models_deepseek.registry",
    "ascend_models_minimax.registry",
)


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
def in_process(in_process: None) -> Iterator[None]:
    """As above; and engines whose caches have a size that is given run few tokens as they start.

    vLLM runs its largest step also where it measures nothing with it. What that step takes is held
    against the plan in the tests that leave the size of the caches to vLLM.
    """
    from ascend_vllm_plugin.npu.runner import NPUModelRunner

    whole = NPUModelRunner.profile_run

    def profile_run(self: NPUModelRunner) -> None:
        most = self.max_num_tokens
        if self.cache_config.kv_cache_memory_bytes:
            self.max_num_tokens = min(most, PROFILED_TOKENS)
        try:
            whole(self)
        finally:
            self.max_num_tokens = most

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NPUModelRunner, "profile_run", profile_run)
        yield


@pytest.fixture(scope="session")
def engines(checkpoints: Checkpoints, in_process: None) -> Iterator[EnginePool]:
    """Engines whose caches keep the model's dtype, which the float32 bars of the tests need."""
    pool = EnginePool(checkpoints, {"cache_dtype": "model"})
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def programs() -> Iterator[ForkedPrograms]:
    """A process with everything imported, of which programs on two devices are copies."""
    environ = {
        "ASCEND_SIMULATED_NPU": f"family={FAMILY},devices=2,kernels=reference",
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }
    with ForkedPrograms(IMPORTED_FIRST, **environ) as made:
        yield made


@pytest.fixture
def family() -> Iterator[None]:
    """Lets a test choose another device family through an engine's `additional_config`."""
    yield
    use_family(FAMILY)
