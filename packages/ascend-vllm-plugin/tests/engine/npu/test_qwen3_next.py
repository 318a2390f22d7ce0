"""vLLM's own Qwen3-Next on the simulated NPU against transformers, in chunks and in graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_attention.vllm.dense import AscendAttentionBackendImpl
from ascend_attention.vllm.linear.gdn import AscendGatedDeltaNetAttention
from ascend_ops_core.testing.simulated_npu import counters
from ascend_vllm_plugin.planning.states import StateUse
from ascend_vllm_plugin.testing import Qwen3NextMtpOracle

from ..harness import Checkpoints, EnginePool, Request, assert_all_match
from ..test_kimi_linear import assert_as_planned
from ..test_mtp import counters as acceptance
from ..test_mtp import total
from ..test_qwen3_next import NAME, oracle_of, requests_of
from ..test_qwen3_next_mtp import NAME as WITH_DRAFTS
from ..test_qwen3_next_mtp import speculation

pytestmark = pytest.mark.engine_npu

SETTINGS: dict[str, Any] = {
    "enable_prefix_caching": True,
    "enforce_eager": False,
    "max_num_seqs": 8,
    "compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [2, 4]},
}
SHAPES = [(1, 8, 0), (129, 6, 0), (64, 10, 1), (65, 8, 3), (200, 5, 4)]


def test_a_ragged_batch_in_chunks(engines: EnginePool, checkpoints: Checkpoints) -> None:
    """And a prefix of whole blocks, from the states at their ends; decode steps are replayed."""
    engine, oracle = engines.get(NAME, **SETTINGS), oracle_of(checkpoints)
    layers = engine.engine.vllm_config.compilation_config.static_forward_context.values()
    ours = [layer for layer in layers if isinstance(layer, AscendGatedDeltaNetAttention)]
    assert len(ours) == 3
    attention = [layer for layer in layers if hasattr(layer, "impl")]
    assert {type(layer.impl) for layer in attention} == {AscendAttentionBackendImpl}
    caches = [*(state for layer in ours for state in layer.kv_cache), attention[0].kv_cache]
    assert {cache.device for cache in caches} == {torch.device("npu", 0)}
    assert engine.runner.model.captured_sizes == [2, 4]
    assert_as_planned(engine, checkpoints.folder(NAME), StateUse(prefix_caching=True))
    requests = requests_of(oracle, SHAPES)
    before = counters()
    with engine.scheduling_at_most(100):
        assert_all_match(oracle, requests, engine.run(requests))
    assert (counters() - before).replays >= 4
    again = [Request(requests[-1].prompt, 6)]
    results = engine.run(again)
    assert results[0].cached == engine.engine.vllm_config.cache_config.block_size == 128
    assert_all_match(oracle, again, results)


@pytest.mark.parametrize("width", [3])
def test_own_drafts_in_graphs(engines: EnginePool, checkpoints: Checkpoints, width: int) -> None:
    """Verification is replayed, states go back to the last right draft, and prefixes are kept."""
    sizes = [2 * (1 + width), 4 * (1 + width)]
    graphs = {**SETTINGS["compilation_config"], "cudagraph_capture_sizes": sizes}
    engine = engines.get(
        WITH_DRAFTS,
        **SETTINGS | {"compilation_config": graphs},
        speculative_config=speculation(width),
    )
    oracle = oracle_of(checkpoints, WITH_DRAFTS)
    use = StateUse(drafts=width, prefix_caching=True)
    assert_as_planned(engine, checkpoints.folder(WITH_DRAFTS), use)
    requests = requests_of(oracle, [(1, 12, 0), (65, 10, 1)])
    before, seen = counters(), acceptance(engine)
    results = engine.run(requests)
    assert (counters() - before).replays > 0
    assert_all_match(oracle, requests, results)
    reported = {name: value - seen[name] for name, value in acceptance(engine).items()}
    drafts = Qwen3NextMtpOracle(oracle)
    assert reported == total([drafts.speculate(r.prompt, r.count, width) for r in requests])
    # As long as a step with drafts, and not one.
    requests = requests_of(oracle, [(1 + width, 8, 0)])
    assert_all_match(oracle, requests, engine.run(requests))
    unit = engine.engine.vllm_config.cache_config.block_size
    requests = requests_of(oracle, [(2 * unit - 8, 20, 0), (64, 10, 2)])
    with engine.scheduling_at_most(100):
        results = engine.run(requests)
    assert_all_match(oracle, requests, results)
    again = [Request(requests[0].prompt + results[0].tokens, 4)]
    results = engine.run(again)
    assert results[0].cached == unit
    assert_all_match(oracle, again, results)
