"""The worker measures memory, gives the rest to the caches, profiles, and does not sleep."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from ascend_models_deepseek.testing import random_prompt

from ..harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine_npu

SPEC = "mixed"
SHARE = 0.002


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture
def engine(engines: EnginePool, traces: Path) -> Engine:
    return engines.get(
        SPEC,
        kv_cache_memory_bytes=None,
        gpu_memory_utilization=SHARE,
        max_num_batched_tokens=256,
        profiler_config={
            "profiler": "torch",
            "torch_profiler_dir": str(traces),
            "torch_profiler_with_stack": False,  # which takes half a minute
        },
    )


def test_caches_get_what_is_left_of_the_share(engine: Engine, checkpoints: Checkpoints) -> None:
    asked = SHARE * torch.npu.mem_get_info()[1]
    caches = sum(
        {
            cache.untyped_storage().data_ptr(): cache.untyped_storage().nbytes()
            for cache in engine.caches.values()
        }.values()
    )
    assert 0.5 * asked < caches < asked
    request = Request(random_prompt(40, 512, seed=1), 4)
    assert_all_match(checkpoints.oracle(SPEC), [request], engine.run([request]))
    # Weights, caches and the largest step together stay within the share.
    assert torch.npu.max_memory_allocated() <= asked


def test_a_full_step_at_the_longest_context_stays_within_what_was_set_aside(
    engine: Engine,
) -> None:
    """vLLM measures a step without attention, whose indices come on top of it."""
    (found,) = engine.llm.collective_rpc("memory_figures")
    held = torch.npu.memory_allocated()
    torch.npu.reset_peak_memory_stats()
    engine.generate(random_prompt(1020, 512, seed=3), 2)
    peak = torch.npu.max_memory_allocated() - held
    assert found["activations"] < peak <= found["activations"] + found["attention"]


def test_selected_tokens_stay_within_what_was_set_aside(engines: EnginePool) -> None:
    """Scores, selections and absorbed queries of DeepSeek-V3.2, which vLLM does not measure."""
    engine = engines.get(
        "v32",
        kv_cache_memory_bytes=None,
        gpu_memory_utilization=SHARE,
        max_num_batched_tokens=256,
        additional_config={"cache_dtype": "family"},
    )
    (found,) = engine.llm.collective_rpc("memory_figures")
    held = torch.npu.memory_allocated()
    torch.npu.reset_peak_memory_stats()
    engine.generate(random_prompt(1020, 512, seed=3), 2)
    peak = torch.npu.max_memory_allocated() - held
    assert found["activations"] < peak <= found["activations"] + found["attention"]


@pytest.mark.parametrize("call", ["sleep", "wake_up"])
def test_sleep_is_refused(engine: Engine, call: str) -> None:
    with pytest.raises(Exception, match=r"sleep mode.*Stop the engine"):
        engine.llm.collective_rpc(call)


def test_a_profile_is_written(engine: Engine, traces: Path) -> None:
    """Of the host's work, since the simulated device has no profiler."""
    engine.llm.start_profile()
    engine.generate(random_prompt(3, 512, seed=2), 2)
    engine.llm.stop_profile()
    (trace,) = [file for file in traces.glob("*.json*") if "rank0" in file.name]
    with gzip.open(trace, "rt") as text:
        names = {event.get("name") for event in json.load(text)["traceEvents"]}
    assert any("aten::" in str(name) for name in names)
