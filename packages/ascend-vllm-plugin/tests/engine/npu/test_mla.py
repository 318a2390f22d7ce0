"""DeepSeek-V3 on the simulated NPU against transformers, with and without graphs, and drafting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import (
    BFLOAT16_MEAN_RATIO,
    BFLOAT16_MEAN_SLACK,
    random_prompt,
)
from ascend_models_deepseek.testing.oracle_v3 import V3MtpOracle, V3Oracle
from ascend_models_deepseek.testing.tiny_v3 import V3_SPECS, write_v3_checkpoint
from ascend_ops_core.testing.contract import installed
from ascend_ops_core.testing.simulated_npu import counters

from ..harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine_npu

SPEC = "v3"
VOCAB = 512
SHAPES = [(1, 12, 0), (129, 6, 0), (17, 10, 1), (255, 6, 2), (128, 8, 3), (370, 8, 4)]
GRAPHS: dict[str, Any] = {
    "enforce_eager": False,
    "max_num_seqs": 8,
    "compilation_config": {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [3, 6, 12],
    },
}


def ragged(vocab: int = VOCAB) -> list[Request]:
    """Requests that join and finish at different steps."""
    return [Request(random_prompt(n, vocab, seed=100 + n), count, at) for n, count, at in SHAPES]


def test_a_ragged_batch_in_chunks(engines: EnginePool, checkpoints: Checkpoints) -> None:
    engine = engines.get("v3_plain", enable_prefix_caching=True)
    assert {cache.device for cache in engine.caches.values()} == {torch.device("npu", 0)}
    requests = ragged(500)
    with engine.scheduling_at_most(100):
        results = engine.run(requests)
    assert_all_match(checkpoints.oracle("v3_plain"), requests, results)
    again = [Request(requests[-1].prompt, 6)]
    results = engine.run(again)
    assert results[0].cached == 256
    assert_all_match(checkpoints.oracle("v3_plain"), again, results)


@pytest.mark.parametrize(("settings", "width"), [({}, 1), (GRAPHS, 2)], ids=["eager-1", "graphs-2"])
def test_drafts(
    engines: EnginePool, checkpoints: Checkpoints, settings: dict[str, Any], width: int
) -> None:
    """The target's tokens, and as many right drafts as transformers' MTP layer says.

    Where a chunk of a prompt ends, vLLM 0.27.1's runner for devices gives the draft the prompt's
    last token instead of the next one, so acceptance is compared for whole prompts alone.
    """
    drafts = {"speculative_config": {"method": "mtp", "num_speculative_tokens": width}}
    engine = engines.get(SPEC, **settings, **drafts)
    requests = ragged()
    names = ("num_draft_tokens", "num_accepted_tokens")
    before = [engine.metric(f"vllm:spec_decode_{name}") for name in names]
    replays = counters()
    results = engine.run(requests)
    assert bool((counters() - replays).replays) is bool(settings)
    after = [engine.metric(f"vllm:spec_decode_{name}") for name in names]
    oracle = checkpoints.oracle(SPEC)
    assert_all_match(oracle, requests, results)
    draft = V3MtpOracle(oracle)
    expected = [draft.speculate(r.prompt, r.count, width) for r in requests]
    assert sum(one.accepted for one in expected) > 0
    reported = [now - then for now, then in zip(after, before, strict=True)]
    assert reported == [sum(o.drafted for o in expected), sum(o.accepted for o in expected)]
    with engine.scheduling_at_most(100):
        results = engine.run(requests[-2:])
    assert_all_match(oracle, requests[-2:], results)


def test_graphs_without_drafts(engines: EnginePool, checkpoints: Checkpoints) -> None:
    engine = engines.get(SPEC, **GRAPHS)
    requests = ragged()
    before = counters()
    results = engine.run(requests)
    assert (counters() - before).replays >= 5
    assert_all_match(checkpoints.oracle(SPEC), requests, results)


# The published sizes of attention, which torch_npu's operators need, and little besides.
WIDE = replace(
    V3_SPECS["v3"],
    hidden_size=6144,
    num_hidden_layers=2,
    num_attention_heads=2,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    n_routed_experts=4,
    n_group=2,
    num_experts_per_tok=2,
    mtp="none",
)
IN_FRONT = {"npu_mla_prolog_v3", "npu_kv_rmsnorm_rope_cache"}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_v3_checkpoint(WIDE, tmp_path_factory.mktemp("wide"), torch.bfloat16)


@pytest.mark.parametrize("forced", [False, True], ids=["prologue", "cache alone"])
def test_torch_npu_s_operators_are_called(
    engines: EnginePool, wide: Path, monkeypatch: pytest.MonkeyPatch, forced: bool
) -> None:
    """In bfloat16 the prologue is one operator; without it, the cache's rows are."""
    engines.close()
    if forced:
        monkeypatch.setenv("ASCEND_OPS", "mla_prolog=torch")
    requests = [
        Request(random_prompt(length, VOCAB, seed=length), 3, prompt_logits=True)
        for length in (24, 3)
    ]
    contract = installed()
    assert contract is not None
    before = len(contract.calls)
    engine = Engine(wide, dtype="bfloat16")
    try:
        results = engine.run(requests)
    finally:
        engine.close()
    called = {call.op for call in contract.calls[before:]}
    assert called & IN_FRONT == {"npu_kv_rmsnorm_rope_cache" if forced else "npu_mla_prolog_v3"}
    assert "npu_fused_infer_attention_score_v2" in called
    exact, rounded = V3Oracle(wide), V3Oracle(wide, torch.bfloat16)
    ours, theirs = [], []
    for request, result in zip(requests, results, strict=True):
        ids = [*request.prompt, *result.tokens[:-1]]
        truth = exact.logits(ids)
        assert result.prompt_logits is not None
        ours.append((torch.cat([result.prompt_logits, result.logits]) - truth).abs().flatten())
        theirs.append((rounded.logits(ids) - truth).abs().flatten())
    error, yardstick = float(torch.cat(ours).mean()), float(torch.cat(theirs).mean())
    assert error <= BFLOAT16_MEAN_RATIO * yardstick + BFLOAT16_MEAN_SLACK, (error, yardstick)
