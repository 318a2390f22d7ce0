"""Fixtures that let the engine tests share checkpoints, oracles and running engines."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .harness import Checkpoints, EnginePool

# What engines and oracles import in the end.
IMPORTED_FIRST = (
    "vllm.entrypoints.llm",
    "vllm.v1.worker.gpu_model_runner",
    "ascend_models_deepseek.registry",
    "transformers.models.deepseek_v3.modeling_deepseek_v3",
    "transformers.models.deepseek_v4.modeling_deepseek_v4",
)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


def inspect_others_here(patch: pytest.MonkeyPatch) -> None:
    """Let vLLM look at the classes of models in this process, except for the first.

    It starts a process that imports vLLM for every class that it meets. That such a process finds
    our models one of them shows.
    """
    from vllm.model_executor.models import registry

    elsewhere = iter([registry._run_in_subprocess])

    def run(look: Callable[[], Any]) -> Any:
        first = next(elsewhere, None)
        return look() if first is None else first(look)

    patch.setattr(registry, "_run_in_subprocess", run)


@pytest.fixture(scope="session")
def in_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        for module in IMPORTED_FIRST:
            importlib.import_module(module)
        inspect_others_here(patch)
        gc.collect()
        gc.freeze()
        # vLLM collects garbage a dozen times for every engine. It must not thaw its modules, which
        # never become any; nor freeze an engine, which then would not be collected.
        patch.setattr(gc, "freeze", lambda: None)
        patch.setattr(gc, "unfreeze", lambda: None)
        yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def engines(checkpoints: Checkpoints, in_process: None) -> Iterator[EnginePool]:
    pool = EnginePool(checkpoints)
    yield pool
    pool.close()
