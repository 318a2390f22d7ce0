"""Caches with the rows of a device family: int8 keys on A3, float8 keys and packed rows on A5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ascend_attention.caches import CacheRole, layer_caches
from ascend_attention.layers.compressor import Compressor
from ascend_attention.layers.indexer import DeepseekV4Indexer
from ascend_attention.ops.paged_rows import RowIndex
from ascend_attention.step import StepLayout
from ascend_attention.vllm.dsa import impl
from ascend_attention.vllm.dsa.cache_layers import AscendDeepseekV4IndexerCache as IndexerCache
from ascend_models_deepseek.testing import MEAN_LOGITS_OF_FAMILY_ROWS, random_prompt
from ascend_ops_core import registry
from ascend_ops_core.devices import use_family
from ascend_ops_core.testing import assert_close
from ascend_ops_core.testing.simulated_npu import counters
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model

from ..harness import Checkpoints, Engine, EnginePool, Request, Result

pytestmark = [pytest.mark.engine_npu, pytest.mark.usefixtures("family")]

QUANTISED = {
    "A3": {CacheRole.INDEX_KEY},
    "A5": {CacheRole.INDEX_KEY, CacheRole.SLIDING_WINDOW, CacheRole.COMPRESSED},
}
CHOSEN = {
    "A3": ("quantize_index_rows", "select_entries", "sparse_attention"),
    "A5": ("quantize_index_rows", "quantize_kv_rows", "select_entries", "sparse_attention"),
}

SPEC = "mixed"
MIB = 1024**2
# Joining at different steps; the longer ones see more entries than the indexer keeps.
SHAPES = [(1, 8, 0), (129, 4, 0), (17, 10, 1), (255, 4, 2), (128, 6, 3), (370, 8, 4)]
# All bits set are NaN in every float, 8-bit ones included, and as the scale of a packed row.
UNWRITTEN = 255
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
GRAPHS: dict[str, Any] = {
    "enforce_eager": False,
    "compilation_config": {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [3, 12],
    },
}


@pytest.fixture(scope="module", params=["A3", "A5"])
def family_name(request: pytest.FixtureRequest) -> str:
    """Scoped so that the tests of one family follow each other, on one engine."""
    return str(request.param)


def engine_of(engines: EnginePool, family_name: str, **settings: Any) -> Engine:
    config = {"device_family": family_name, "cache_dtype": "family"}
    # The engine may have been started by an earlier test.
    use_family(family_name)
    return engines.get(SPEC, additional_config=config, **settings)


def requests() -> list[Request]:
    return [Request(random_prompt(n, 512, seed=100 + n), count, at) for n, count, at in SHAPES]


class Selections:
    """Wraps the selection of entries, and sorts the scores of dequantised keys itself.

    Attributes:
        decided: tokens that saw more entries than are kept, the last of those clear of the next.
        close: tokens where it was not.
    """

    def __init__(self, select: Callable[..., torch.Tensor]) -> None:
        self.select = select
        self.decided = self.close = 0

    def __call__(
        self,
        query: torch.Tensor,
        weights: torch.Tensor,
        keys: torch.Tensor,
        table: torch.Tensor,
        layout: StepLayout,
        ratio: int,
        top_k: int,
        *,
        key_scale: torch.Tensor,
        most_entries: int,
    ) -> torch.Tensor:
        chosen = self.select(
            query, weights, keys, table, layout, ratio, top_k,
            key_scale=key_scale, most_entries=most_entries,
        )  # fmt: skip
        assert keys.dtype in LARGEST
        values = rounded(query.cpu(), keys.dtype)
        rows = keys.cpu().double() * key_scale.cpu().double().unsqueeze(-1)
        table, picked = table.cpu().long(), chosen.cpu()
        for t, (request, position) in enumerate(zip(layout.request, layout.position, strict=True)):
            entry = torch.arange((int(position) + 1) // ratio)
            if len(entry) <= top_k:
                assert picked[t][picked[t] >= 0].tolist() == entry.tolist()
                continue
            row = rows[table[int(request), entry // keys.shape[1]], entry % keys.shape[1]]
            score = (values[t] @ row.T).relu().T @ weights[t].cpu().double()
            best = score.sort(descending=True)
            gap = best.values[top_k - 1] - best.values[top_k]
            if gap <= 1e-6 * best.values[0].abs():
                self.close += 1
                continue
            self.decided += 1
            assert set(picked[t].tolist()) == set(best.indices[:top_k].tolist())
        return chosen


def rounded(query: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``[T, H, D]`` float64: what eight bits with a scale for each token and head hold of it."""
    scale = query.float().abs().amax(-1, keepdim=True) / LARGEST[dtype]
    divided = query.float() / scale
    held = divided.round() if dtype == torch.int8 else divided.to(dtype)
    return held.double() * scale.double()


def assert_close_on_average(
    checkpoints: Checkpoints, family_name: str, asked: list[Request], results: list[Result]
) -> None:
    """Compare with transformers in float32, which the engine equals with the model's dtype."""
    oracle = checkpoints.oracle(SPEC)
    differences = [
        (result.logits - oracle.picked_logits(request.prompt, result.tokens)).abs().flatten()
        for request, result in zip(asked, results, strict=True)
    ]
    assert [len(result.tokens) for result in results] == [request.count for request in asked]
    mean = float(torch.cat(differences).mean())
    assert mean <= MEAN_LOGITS_OF_FAMILY_ROWS[family_name], mean


def test_a_ragged_batch_in_eight_bits(
    engines: EnginePool,
    checkpoints: Checkpoints,
    family_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Layouts, logits, exact selections, the kernels that were chosen, and what they touch.

    What is read without having been written spoils the logits: rows or their scales are NaN.
    """
    engine = engine_of(engines, family_name)
    for name, cache in engine.caches.items():
        number, role = int(name.split(".")[2]), CacheRole(name.split(".")[-1])
        spec = checkpoints.spec(SPEC)
        kind = layer_caches(
            spec.compress_ratios[number],
            head_dim=spec.head_dim,
            rotary_dim=spec.qk_rope_head_dim,
            index_head_dim=spec.index_head_dim,
            sliding_window=spec.sliding_window,
            dtype=torch.float32,
            device=family_name,
        )[role]
        quantised = kind.scales is not None
        assert quantised == (role in QUANTISED[family_name])
        assert cache.dtype == (torch.uint8 if quantised else kind.dtype)
        assert cache.shape[1:].numel() * cache.element_size() <= kind.block_bytes
    selections = Selections(impl.select_entries)
    monkeypatch.setattr(impl, "select_entries", selections)
    for cache in engine.caches.values():
        cache.view(torch.uint8).fill_(UNWRITTEN)
    asked = requests()
    with engine.recording_blocks() as used:
        results = engine.run(asked)
    assert_close_on_average(checkpoints, family_name, asked, results)
    for name, cache in engine.caches.items():
        touched = (cache.view(torch.uint8).cpu() != UNWRITTEN).flatten(1).any(dim=1)
        assert set(touched.nonzero().flatten().tolist()) <= used | {0}, name
    assert selections.decided > 500
    assert selections.close < 0.01 * selections.decided
    for name in CHOSEN[family_name]:
        chosen = registry.find(f"ascend_attention::{name}")._chosen
        assert {
            choice.implementation for key, choice in chosen.items() if key[0] == family_name
        } == {"triton"}


def test_queries_and_keys_of_the_indexer_are_rotated_before_they_lose_bits(
    engines: EnginePool, family_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both by the same Hadamard matrix, and only where eight bits are kept of them."""
    engine = engine_of(engines, family_name)
    width = engine.runner.get_model().model.spec.index_head_dim
    signs = [[bin(i & j).count("1") % 2 for j in range(width)] for i in range(width)]
    matrix = (1 - 2 * torch.tensor(signs)) / width**0.5
    plain: dict[str, torch.Tensor] = {}
    compared = {"queries": 0, "keys": 0}

    def query(self: DeepseekV4Indexer, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        plain["queries"], weights = ask(self, *given)
        return plain["queries"], weights

    def finish(self: Compressor, *given: Any) -> torch.Tensor:
        plain["keys"] = close(self, *given)
        return plain["keys"]

    def compare(what: str, rows: torch.Tensor) -> None:
        assert_close(rows.cpu(), plain[what].cpu().float() @ matrix)
        compared[what] += len(rows)

    def selected(rows: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        compare("queries", rows)
        return select(rows, *given, **named)

    def write(self: IndexerCache, rows: torch.Tensor, index: RowIndex) -> None:
        compare("keys", rows)
        put(self, rows, index)

    ask, close = DeepseekV4Indexer.query, Compressor.finish_paged
    select, put = impl.select_entries, IndexerCache.write
    monkeypatch.setattr(DeepseekV4Indexer, "query", query)
    monkeypatch.setattr(Compressor, "finish_paged", finish)
    monkeypatch.setattr(impl, "select_entries", selected)
    monkeypatch.setattr(IndexerCache, "write", write)
    engine.generate(random_prompt(42, 512, seed=42), 3)
    layers = engine.runner.get_model().model.spec.compress_ratios.count(4)
    assert compared == {"queries": 44 * layers, "keys": 11 * layers}


def test_the_pool_is_the_planned_one(
    engines: EnginePool, checkpoints: Checkpoints, family_name: str
) -> None:
    engine = engine_of(engines, family_name)
    request = PlanRequest(
        family_name, max_model_len=1024, dtype="float32", memory_bytes=1024 * MIB,
        kv_cache_memory_bytes=64 * MIB,
    )  # fmt: skip
    plan = make_plan(read_model(checkpoints.folder(SPEC)), request)
    assert engine.scheduler.kv_cache_manager.block_pool.num_gpu_blocks == plan.num_blocks
    storages = [cache.untyped_storage() for cache in engine.caches.values()]
    slabs = {storage.data_ptr(): storage.nbytes() for storage in storages}
    assert sum(slabs.values()) == plan.num_blocks * plan.pool.stride


def test_graphs_and_drafts_write_the_same_rows(
    engines: EnginePool, checkpoints: Checkpoints
) -> None:
    """Padding rows of a captured batch write nothing; drafts are verified against these caches."""
    speculation = {"method": "mtp", "num_speculative_tokens": 2}
    engine = engine_of(engines, "A3", **GRAPHS, speculative_config=speculation)
    asked = [Request(random_prompt(n, 512, seed=n), 16) for n in (5, 128, 300)]
    before = counters()
    results = engine.run(asked)
    assert (counters() - before).replays >= 5
    assert_close_on_average(checkpoints, "A3", asked, results)
    engines.close()
