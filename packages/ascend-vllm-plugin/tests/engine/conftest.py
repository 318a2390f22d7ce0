"""Fixtures that let the engine tests share checkpoints, oracles and running engines."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from .harness import Checkpoints, EnginePool


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def in_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        import vllm.entrypoints.llm  # noqa: F401

        # vLLM collects garbage at every start and end of an engine; its modules never become any.
        gc.collect()
        gc.freeze()
        yield
        gc.unfreeze()


@pytest.fixture(scope="session")
def engines(checkpoints: Checkpoints, in_process: None) -> Iterator[EnginePool]:
    pool = EnginePool(checkpoints)
    yield pool
    pool.close()
