"""A process with everything imported, of which most tests' programs are copies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ascend_ops_core.testing.forked_programs import ForkedPrograms

# What a program, its engine and its workers import in the end.
IMPORTED_FIRST = (
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "ascend_models_deepseek.registry",
    "ascend_models_minimax.registry",
)


@pytest.fixture(scope="session")
def programs() -> Iterator[ForkedPrograms]:
    with ForkedPrograms(IMPORTED_FIRST, VLLM_ENABLE_V1_MULTIPROCESSING="1") as made:
        yield made
