"""What `plan` says against what the engine allocates on the simulated device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from ascend_models_deepseek.testing import SPECS, TinyV4Spec, write_checkpoint
from ascend_models_deepseek.testing.tiny_v3 import V3_SPECS, TinyV3Spec, write_v3_checkpoint
from ascend_models_deepseek.testing.tiny_v32 import V32_SPECS, TinyV32Spec, write_v32_checkpoint
from ascend_ops_core.devices import use_family
from ascend_vllm_plugin.planning.plan import Plan, make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model

from ..harness import spare_the_next_search
from .conftest import FAMILY

pytestmark = pytest.mark.engine_npu

SHARE = 0.001
# One layer of each kind, since every one takes time.
FEW = replace(SPECS["mixed"], compress_ratios=(0, 128, 4), num_hash_layers=1)
# Attention, or logits, are as large as in a real model, compared with experts.
MANY_HEADS = replace(FEW, num_attention_heads=32, num_experts_per_tok=2)
WIDE_VOCABULARY = replace(FEW, vocab_size=12000)
C4_ONLY = replace(FEW, compress_ratios=(4, 4, 0))


@dataclass(frozen=True)
class Case:
    """An engine to start; sizes are in tokens."""

    family: str
    spec: TinyV4Spec | TinyV3Spec
    dtype: str = "bfloat16"
    step: int = 256
    requests: int = 16
    context: int = 1024
    block: int | None = None
    drafted: int = 0
    sizes: tuple[int, ...] = field(default=())
    rows: str = "family"
    o_proj: str = "auto"

    @property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "dtype": self.dtype,
            "max_num_batched_tokens": self.step,
            "max_num_seqs": self.requests,
            "max_model_len": self.context,
            "gpu_memory_utilization": SHARE,
            "enforce_eager": not self.sizes,
            "skip_tokenizer_init": True,
            "additional_config": {
                "device_family": self.family,
                "cache_dtype": self.rows,
                "o_proj": self.o_proj,
            },
        }
        if self.block:
            settings["block_size"] = self.block
        if self.drafted:
            settings["speculative_config"] = {
                "method": "mtp",
                "num_speculative_tokens": self.drafted,
            }
        if self.sizes:
            settings["compilation_config"] = {"cudagraph_capture_sizes": list(self.sizes)}
        return settings


CASES = {
    "A3-float32": Case("A3", SPECS["wide_window"], "float32", step=200, rows="model"),
    "A3-graphs": Case("A3", FEW, step=64, sizes=(2, 16)),
    "A3-mtp": Case("A3", SPECS["tensor_parallel"], "float32", step=300, drafted=1),
    "A3-mtp-graphs": Case("A3", FEW, step=77, drafted=2, sizes=(6, 7)),
    "A3-long": Case("A3", FEW, requests=3, context=4096, step=129),
    "A2-vocabulary": Case("A2", WIDE_VOCABULARY, step=40, requests=31),
    "A2-blocks": Case("A2", C4_ONLY, block=512),
    "A3-v3-mtp": Case("A3", V3_SPECS["v3"], step=250, drafted=2),
    "A3-v32-mtp": Case("A3", V32_SPECS["v32"], step=250, drafted=1),
    "A5": Case("A5", MANY_HEADS),
    "A5-fp8": Case("A5", SPECS["tensor_parallel"], sizes=(2, 16), o_proj="fp8"),
    "A5-mtp": Case("A5", MANY_HEADS, "float16", drafted=2, step=250),
}


@pytest.fixture(params=CASES.items(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    yield request.param[1]
    use_family(FAMILY)


def written(spec: TinyV4Spec | TinyV3Spec, folder: Path) -> Path:
    if isinstance(spec, TinyV32Spec):
        return write_v32_checkpoint(spec, folder)
    if isinstance(spec, TinyV3Spec):
        return write_v3_checkpoint(spec, folder)
    return write_checkpoint(spec, folder)


def started(folder: Path, case: Case) -> dict[str, int]:
    """The figures of a worker whose engine is ready for requests."""
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    config = EngineArgs(model=str(folder), **case.settings).create_engine_config()
    core = EngineCore(config, UniProcExecutor, log_stats=False)
    try:
        (found,) = core.collective_rpc("memory_figures")
        # Async scheduling keeps a second step in flight.
        found["in_flight"] = config.max_in_flight_tokens
    finally:
        core.shutdown()
        del core
        cleanup_dist_env_and_memory()
        spare_the_next_search()
    return found


def planned(folder: Path, case: Case, *, in_flight: int) -> Plan:
    request = PlanRequest(
        case.family,
        max_model_len=case.context,
        dtype=case.dtype,
        cache_dtype=case.rows,
        block_size=case.block,
        memory_bytes=64 * 1024**3,
        gpu_memory_utilization=SHARE,
        max_num_batched_tokens=case.step,
        max_num_seqs=case.requests,
        speculative_tokens=case.drafted,
        async_scheduling=in_flight > case.step,
        graphs=bool(case.sizes),
        capture_sizes=case.sizes or None,
        o_proj=case.o_proj,
    )
    return make_plan(read_model(folder), request)


@pytest.mark.usefixtures("in_process")
def test_the_engine_allocates_what_was_planned(case: Case, tmp_path: Path) -> None:
    """Weights, block tables and the size of a block exactly; blocks and the total within 1 %."""
    folder = written(case.spec, tmp_path)
    found = started(folder, case)
    plan = planned(folder, case, in_flight=found["in_flight"])
    share = plan.budget / 100
    assert found["weights"] == sum(plan.weights.values())
    assert found["captured"] == len(plan.request.captures.sizes)
    assert found["caches"] == found["num_blocks"] * plan.pool.stride
    assert found["block_tables"] == plan.block_tables.bytes
    assert found["attention"] == plan.attention.bytes + plan.block_tables.bytes
    held = found["loaded"] + found["buffers"]
    assert held == pytest.approx(
        found["weights"] + plan.rotary_bytes + plan.buffers.bytes, abs=share
    )
    assert found["activations"] == pytest.approx(plan.activations.bytes, rel=0.05)
    assert found["graphs"] == pytest.approx(plan.graphs.bytes, abs=share)
    assert found["num_blocks"] == pytest.approx(plan.num_blocks, rel=0.01)
    total = held + found["caches"] + found["block_tables"]
    assert found["allocated"] == pytest.approx(total, abs=share)
