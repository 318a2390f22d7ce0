"""vLLM's own Ling 2.5 with its drafts on the simulated NPU, in chunks and in graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_attention.vllm.linear.bailing import AscendBailingMoELinearAttention
from ascend_attention.vllm.linear.latent import AscendHybridMLACache
from ascend_ops_core.testing.simulated_npu import counters
from ascend_vllm_plugin.planning.states import StateUse
from ascend_vllm_plugin.testing import BailingMtpOracle

from ..harness import Checkpoints, EnginePool, Request, assert_all_match, assert_clear_match
from ..test_bailing import requests_of
from ..test_kimi_linear import assert_as_planned
from ..test_mtp import counters as acceptance
from ..test_mtp import total

pytestmark = pytest.mark.engine_npu

NAME, WIDTH = "bailing_mtp", 2
SETTINGS: dict[str, Any] = {
    "enable_prefix_caching": True,
    "enforce_eager": False,
    "max_num_seqs": 8,
    "compilation_config": {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [2 * (1 + WIDTH), 4 * (1 + WIDTH)],
    },
    "speculative_config": {"method": "mtp", "num_speculative_tokens": WIDTH},
}


def test_own_drafts_in_graphs(engines: EnginePool, checkpoints: Checkpoints) -> None:
    """As many are right as transformers says, and states go back to the last right one."""
    engine, oracle = engines.get(NAME, **SETTINGS), checkpoints.oracle(NAME)
    layers = engine.engine.vllm_config.compilation_config.static_forward_context.values()
    linear = [layer for layer in layers if isinstance(layer, AscendBailingMoELinearAttention)]
    latent = [layer for layer in layers if isinstance(layer, AscendHybridMLACache)]
    assert (len(linear), len(latent)) == (2, 2)
    caches = [*(layer.kv_cache[0] for layer in linear), *(layer.kv_cache for layer in latent)]
    assert {cache.device for cache in caches} == {torch.device("npu", 0)}
    use = StateUse(drafts=WIDTH, prefix_caching=True)
    assert_as_planned(engine, checkpoints.folder(NAME), use)
    requests = requests_of([(1, 12, 0), (65, 10, 1)], seed=0)
    before, seen = counters(), acceptance(engine)
    results = engine.run(requests)
    assert (counters() - before).replays > 0
    reported = {name: value - seen[name] for name, value in acceptance(engine).items()}
    assert_all_match(oracle, requests, results)
    drafts = BailingMtpOracle(oracle)
    expected = total([drafts.speculate(r.prompt, r.count, WIDTH) for r in requests])
    assert 0 < expected["num_accepted_tokens"] < expected["num_draft_tokens"]
    assert reported == expected


def test_a_ragged_batch_in_chunks(engines: EnginePool, checkpoints: Checkpoints) -> None:
    """And a prefix of whole blocks, from the states at their ends."""
    engine, oracle = engines.get(NAME, **SETTINGS), checkpoints.oracle(NAME)
    shapes = [(1, 8, 0), (129, 6, 0), (64, 10, 1), (65, 8, 3), (300, 5, 4)]
    with engine.scheduling_at_most(100):
        assert_clear_match(engine, oracle, lambda seed: requests_of(shapes, seed))
    again = [Request(requests_of(shapes, 0)[-1].prompt, 6)]
    results = engine.run(again)
    # With a draft vLLM matches one block more, and drops it.
    assert results[0].cached == engine.engine.vllm_config.cache_config.block_size == 128
    assert_all_match(oracle, again, results)
