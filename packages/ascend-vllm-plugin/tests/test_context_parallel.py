"""Contexts that ranks share: block sizes, vLLM's kernels on a CPU, and the planner."""

from __future__ import annotations

# vLLM imports the platform by itself; the platform cannot be the first to import vLLM.
from vllm.platforms.cpu import CpuPlatform  # isort: skip

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing.tiny_v3 import V3_SPECS, write_v3_checkpoint
from ascend_ops_core.errors import InvalidInputError
from ascend_vllm_plugin.compat import context_parallel
from ascend_vllm_plugin.compat.context_parallel import UnlessShared, allow_shared_contexts
from ascend_vllm_plugin.latent_caches import set_latent_block_size
from ascend_vllm_plugin.planning.advice import advice
from ascend_vllm_plugin.planning.plan import Plan, make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import ModelSource, read_model
from ascend_vllm_plugin.planning.weights import Layout

DATA = Path(__file__).parent / "data"


def engine(interleave: int, older: int = 1, ranks: int = 2, block: int | None = None) -> Any:
    return SimpleNamespace(
        cache_config=SimpleNamespace(
            user_specified_block_size=block is not None, block_size=block or 7
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=ranks,
            cp_kv_cache_interleave_size=interleave,
            dcp_kv_cache_interleave_size=older,
        ),
    )


def test_the_interleave_divides_a_block() -> None:
    for given in (engine(1), engine(128), engine(3, older=64), engine(3, ranks=1)):
        set_latent_block_size(given, "A3")
        assert given.cache_config.block_size == 128
    with pytest.raises(InvalidInputError, match=r"interleave_size=3: .*block_size=128"):
        set_latent_block_size(engine(3), "A3")
    with pytest.raises(InvalidInputError, match=r"interleave_size=32: .*block_size=16"):
        set_latent_block_size(engine(1, older=32, block=16), "A3")


def test_ours_run_only_where_contexts_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = UnlessShared({(1,): "upstream"}, ours=print)
    monkeypatch.setattr(context_parallel, "ranks_sharing_contexts", lambda: 1)
    assert kernel[1,] == "upstream"
    monkeypatch.setattr(context_parallel, "ranks_sharing_contexts", lambda: 2)
    assert kernel[1,] is print


@pytest.mark.engine
def test_upstream_still_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.utils import cpu_triton_utils as upstream
    from vllm.v1.spec_decode.utils import eagle_step_update_slot_mapping_and_metadata as step

    CpuPlatform.import_kernels()
    remove = "remove ascend_vllm_plugin/compat/context_parallel.py"
    with pytest.raises(AssertionError, match="Context Parallelism"):
        upstream._compute_slot_mapping_kernel_impl(
            0, 0, *[torch.zeros(1)] * 3, 1, 1, torch.zeros(1), TOTAL_CP_WORLD_SIZE=2
        )
    known = " ".join(inspect.signature(step).parameters)
    assert "cp" not in known, f"vLLM's drafts know shared contexts: {remove}"
    allow_shared_contexts()
    allow_shared_contexts()
    for name in ("compute_slot_mapping_kernel", "eagle_step_slot_mapping_metadata_kernel"):
        kernel = getattr(upstream, name)
        assert isinstance(kernel, UnlessShared)
        assert not isinstance(kernel.upstream, UnlessShared)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return read_model(write_v3_checkpoint(V3_SPECS["v3"], tmp_path_factory.mktemp("v3")))


def planned(model: ModelSource, layout: Layout, **given: Any) -> Plan:
    request = PlanRequest("A3", layout, dtype="float32", max_model_len=512, **given)
    return make_plan(model, request)


def test_caches_are_divided_by_the_ranks_that_share_them(model: ModelSource) -> None:
    alone, shared = planned(model, Layout(2)), planned(model, Layout(2, context=2))
    assert alone.pool.stride == shared.pool.stride
    assert alone.pool.blocks_per_request(512, 1) == 4
    assert shared.pool.blocks_per_request(512, 1) == 2
    assert shared.pool.blocks_per_request(257, 1) == 2
    assert shared.pool.blocks_per_request(256, 1) == 1
    assert [use.request_bytes for use in alone.caches] == [
        2 * use.request_bytes for use in shared.caches
    ]
    assert (alone.pool.prefix_unit, shared.pool.prefix_unit) == (128, 256)
    assert alone.weights == shared.weights
    # What the ranks exchange is set aside.
    assert shared.attention.bytes > alone.attention.bytes
    assert shared.block_tables.bytes < alone.block_tables.bytes


def test_twice_the_context_fits(model: ModelSource) -> None:
    found = []
    for context in (1, 2):
        plan = planned(model, Layout(2, context=context), kv_cache_memory_bytes=1 << 20)
        blocks = plan.pool.num_blocks(plan.cache_bytes) - 1
        found.append(blocks // plan.pool.blocks_per_request(128 * context, 1) * 128 * context)
    assert found[1] == 2 * found[0] > 0


def test_layouts_that_make_no_sense_are_refused(model: ModelSource) -> None:
    with pytest.raises(InvalidInputError, match=r"dcp=3.*tp=4"):
        Layout(4, context=3)
    with pytest.raises(InvalidInputError, match="dcp=0"):
        Layout(4, context=0)
    request = PlanRequest("A3", Layout(8, context=2), weight_format="w8a8", max_model_len=4096)
    with pytest.raises(InvalidInputError, match=r"dcp=2.*DeepSeek-V4"):
        make_plan(read_model(DATA / "deepseek_v4_flash.json"), request)


def test_advice_keeps_the_ranks(model: ModelSource) -> None:
    plan = planned(model, Layout(2, context=2), concurrency=64, kv_cache_memory_bytes=1 << 20)
    assert not plan.fits
    assert advice(plan)
