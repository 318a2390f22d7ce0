"""The planner's arithmetic against what vLLM allocates."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.testing import SPECS, random_prompt
from ascend_vllm_plugin.planning.block_pool import BlockPool, LayerCache, caches_of, pool_of
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.weights import Layout

from .harness import Checkpoints, Engine, EnginePool, Request

pytestmark = pytest.mark.engine

DATA = Path(__file__).parents[1] / "data"
MIB = 1024**2
# Tokens in flight, context, and memory of the caches; nothing about them is round.
CASES = [
    ("mixed", "cpu", torch.float32, False, 2048, 1024, 64 * MIB),
    ("mixed", "cpu", torch.bfloat16, True, 4096, 1000, 64 * MIB + 12345),
    ("wide_window", "cpu", torch.float32, False, 128, 2047, 33 * MIB),
    ("tensor_parallel", "cpu", torch.float32, True, 1, 257, 7 * MIB),
    ("mixed", "A2", torch.bfloat16, False, 2048, 4095, 64 * MIB),
    ("tensor_parallel", "A3", torch.bfloat16, True, 8192, 4096, 64 * MIB),
    ("wide_window", "A5", torch.bfloat16, False, 2048, 129, 64 * MIB),
    ("flash", "cpu", torch.bfloat16, False, 4096, 131072, 40 * 1024 * MIB),
    ("flash", "A2", torch.bfloat16, True, 4096, 1048576, 40 * 1024 * MIB),
    ("flash", "A5", torch.bfloat16, True, 16384, 1048575, 80 * 1024 * MIB + 1),
    ("pro", "A2", torch.bfloat16, True, 4096, 1048576, 50 * 1024 * MIB),
    ("pro", "A5", torch.bfloat16, False, 20480, 400001, 90 * 1024 * MIB),
    ("window_only", "cpu", torch.float32, False, 2048, 1024, 64 * MIB),
]
IDS = [f"{case[0]}-{case[1]}{'-mtp' if case[3] else ''}" for case in CASES]


def model(name: str) -> DeepseekV4Spec:
    if name == "window_only":
        return DeepseekV4Spec.from_config(
            SPECS["mixed"].original_config() | {"compress_ratios": [0] * 6}
        )
    if name in SPECS:
        return DeepseekV4Spec.from_config(SPECS[name].original_config())
    return read_model(DATA / f"deepseek_v4_{name}.json").spec


def specs_of(caches: list[LayerCache]) -> dict[str, Any]:
    """vLLM's own specs, named as the model names its caches."""
    from ascend_attention.vllm.compat import cache_spec

    return {
        f"model.layers.{cache.layer}.attn.{cache.kind.role.value}": cache_spec(cache.kind)
        for cache in caches
    }


def config_of(context: int, in_flight: int, *, draft: bool) -> Any:
    """The few settings that vLLM's allocation reads."""
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=None,
            enable_prefix_caching=True,
            prefix_match_unit=None,
            block_size=256,
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        model_config=SimpleNamespace(max_model_len=context, original_max_model_len=context),
        speculative_config=SimpleNamespace(use_eagle=lambda: True) if draft else None,
        kv_transfer_config=None,
        max_in_flight_tokens=in_flight,
    )


def planned(
    name: str, device: str, dtype: torch.dtype, draft: bool
) -> tuple[list[LayerCache], BlockPool]:
    caches = caches_of(model(name), dtype=dtype, device=device, draft=draft)
    return caches, pool_of(caches, draft=draft)


@pytest.mark.parametrize(
    ("name", "device", "dtype", "draft", "in_flight", "context", "memory"), CASES, ids=IDS
)
def test_pool_is_the_one_that_vllm_allocates(
    name: str,
    device: str,
    dtype: torch.dtype,
    draft: bool,
    in_flight: int,
    context: int,
    memory: int,
) -> None:
    """Blocks, bytes, groups and a request's blocks: equal, not merely close."""
    from vllm.v1.core import kv_cache_utils

    caches, pool = planned(name, device, dtype, draft)
    specs, config = specs_of(caches), config_of(context, in_flight, draft=draft)
    groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    allocated = kv_cache_utils.get_kv_cache_config_from_groups(config, groups, memory)

    blocks = pool.num_blocks(memory)
    assert allocated.num_blocks == blocks
    if len(groups) > 1:
        assert {tensor.block_stride for tensor in allocated.kv_cache_tensors} == {pool.stride}
        assert {tensor.size for tensor in allocated.kv_cache_tensors} == {pool.stride * blocks}
    else:
        assert sum(t.size for t in allocated.kv_cache_tensors) == pool.stride * blocks

    def names(members: Any) -> list[list[str]]:
        return sorted(sorted(member) for member in members)

    ours = [list(specs_of(list(group.caches))) for group in pool.groups]
    assert names(ours) == names(group.layer_names for group in groups)
    concurrency = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, allocated)
    assert concurrency == blocks / pool.blocks_per_request(context, in_flight)
    needed = kv_cache_utils._max_memory_usage_bytes_from_groups(config, groups)
    assert needed == pool.bytes_to_admit(context, in_flight)
    if len(groups) > 1:
        unit, _ = kv_cache_utils.resolve_kv_cache_block_sizes(allocated, config)
        assert unit == pool.prefix_unit


def hits(caches: list[LayerCache], shared: int, *, draft: bool) -> int:
    """Tokens that vLLM reuses for a prompt that shares ``shared`` tokens with an earlier one."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.request import Request as EngineRequest

    config = config_of(4096, 4096, draft=draft)
    groups = kv_cache_utils.get_kv_cache_groups(config, specs_of(caches))
    allocated = kv_cache_utils.get_kv_cache_config_from_groups(config, groups, 256 * MIB)
    unit, granule = kv_cache_utils.resolve_kv_cache_block_sizes(allocated, config)
    scheduler = kv_cache_utils.generate_scheduler_kv_cache_config([allocated])
    manager = KVCacheManager(
        scheduler, 4096, unit, granule, max_in_flight_tokens=4096, use_eagle=draft
    )
    kv_cache_utils.init_none_hash(sha256)
    hasher = kv_cache_utils.get_request_block_hasher(granule, sha256)

    def request(name: str, prompt: list[int]) -> EngineRequest:
        return EngineRequest(name, prompt, SamplingParams(max_tokens=1), None, block_hasher=hasher)

    common = list(range(shared))
    first = request("first", common + [-1] * 600)
    assert manager.allocate_slots(first, first.num_tokens) is not None
    first.num_computed_tokens = first.num_tokens
    manager.free(first)
    return int(manager.get_computed_blocks(request("second", [*common, -2]))[1])


@pytest.mark.parametrize(
    ("name", "device", "draft"),
    [
        ("mixed", "cpu", False),
        ("mixed", "cpu", True),
        ("wide_window", "cpu", False),
        ("tensor_parallel", "cpu", True),
        ("mixed", "A2", False),
        ("mixed", "A2", True),
        ("tensor_parallel", "A5", True),
    ],
)
def test_smallest_shared_prefix_is_the_first_that_hits(name: str, device: str, draft: bool) -> None:
    caches, pool = planned(name, device, torch.bfloat16, draft)
    smallest = pool.smallest_shared_prefix
    assert hits(caches, smallest - 1, draft=draft) == 0
    assert hits(caches, smallest, draft=draft) == pool.prefix_unit


@pytest.fixture
def engine(engines: EnginePool) -> Engine:
    return engines.get(
        "mixed",
        torch.bfloat16,
        enable_prefix_caching=True,
        speculative_config={"method": "mtp", "num_speculative_tokens": 2},
        kv_cache_memory_bytes=64 * MIB + 1000,
    )


def plan_of(engine: Engine, checkpoints: Checkpoints) -> Any:
    config = engine.engine.vllm_config
    request = PlanRequest(
        "cpu",
        Layout(1),
        max_model_len=config.model_config.max_model_len,
        dtype="bfloat16",
        memory_bytes=1024 * MIB,
        kv_cache_memory_bytes=64 * MIB + 1000,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        speculative_tokens=2,
        async_scheduling=config.max_concurrent_batches > 1,
    )
    return make_plan(read_model(checkpoints.folder("mixed", torch.bfloat16)), request)


def test_running_engine_has_the_planned_blocks(engine: Engine, checkpoints: Checkpoints) -> None:
    plan = plan_of(engine, checkpoints)
    pool = engine.scheduler.kv_cache_manager.block_pool
    assert pool.num_gpu_blocks == plan.num_blocks
    storages = [cache.untyped_storage() for cache in engine.caches.values()]
    slabs = {storage.data_ptr(): storage.nbytes() for storage in storages}
    assert sum(slabs.values()) == plan.num_blocks * plan.pool.stride
    assert engine.engine.vllm_config.max_in_flight_tokens == plan.request.load.tokens_in_flight


def test_running_engine_holds_the_planned_weights(engine: Engine, checkpoints: Checkpoints) -> None:
    plan = plan_of(engine, checkpoints)
    runner = engine.engine.engine_core.engine_core.model_executor.driver_worker.model_runner
    main, draft = runner.model, runner.drafter.model
    sizes = {id(p): p.nbytes for module in (main, draft) for p in module.parameters()}
    assert sum(sizes.values()) == sum(plan.weights.values())
    experts = sum(p.nbytes for n, p in main.named_parameters() if ".ffn.experts." in n)
    assert plan.weights["routed experts"] == experts
    shared = {id(p) for p in main.parameters()}
    own = sum(p.nbytes for p in draft.parameters() if id(p) not in shared)
    assert plan.weights["MTP draft"] == own
    tables = {id(b): b.nbytes for m in (main, draft) for n, b in m.named_buffers() if "rotary" in n}
    assert plan.rotary_bytes == sum(tables.values())


def test_running_engine_reuses_from_the_planned_prefix_on(
    engine: Engine, checkpoints: Checkpoints
) -> None:
    smallest = plan_of(engine, checkpoints).pool.smallest_shared_prefix
    cached = Counter[int]()
    for shared in (smallest - 1, smallest):
        assert engine.llm.reset_prefix_cache()
        common = random_prompt(shared, 512, seed=shared)
        engine.run([Request([*common, 1, *random_prompt(100, 512, seed=1)], 1)])
        cached[shared] = engine.run([Request([*common, 2], 1)])[0].cached
    assert cached[smallest - 1] == 0
    assert cached[smallest] == 256
