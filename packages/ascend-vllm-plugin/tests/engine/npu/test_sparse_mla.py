"""DeepSeek-V3.2 and GLM-5 on the simulated NPU against transformers, with and without graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import (
    BFLOAT16_MEAN_RATIO,
    BFLOAT16_MEAN_SLACK,
    MEAN_LOGITS_OF_KEYS,
    random_prompt,
)
from ascend_models_deepseek.testing.oracle_v32 import V32MtpOracle, V32Oracle
from ascend_ops_core.testing.contract import installed
from ascend_ops_core.testing.simulated_npu import counters

from ..harness import Checkpoints, EnginePool, Request, assert_all_match
from ..test_sparse_mla import assert_parity, requests_of

pytestmark = pytest.mark.engine_npu

GRAPHS: dict[str, Any] = {
    "enforce_eager": False,
    "max_num_seqs": 8,
    "compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [2, 4]},
}
ROUTES = {
    "npu_kv_rmsnorm_rope_cache",
    "npu_lightning_indexer",
    "npu_quant_lightning_indexer",
    "npu_sparse_flash_attention",
    "npu_kv_quant_sparse_flash_attention",
}
SHAPES = [(1, 8, 0), (129, 6, 0), (19, 10, 1), (25, 8, 3), (200, 5, 4)]


def oracle_of(checkpoints: Checkpoints, name: str) -> V32Oracle:
    oracle = checkpoints.oracle(name)
    assert isinstance(oracle, V32Oracle)
    return oracle


@pytest.mark.parametrize("name", ["v32", "glm"])
def test_a_ragged_batch_in_chunks(engines: EnginePool, checkpoints: Checkpoints, name: str) -> None:
    engine, oracle = engines.get(name), oracle_of(checkpoints, name)
    assert {cache.device for cache in engine.caches.values()} == {torch.device("npu", 0)}
    with engine.scheduling_at_most(100):
        assert_parity(engine, oracle, requests_of(oracle, SHAPES))


@pytest.mark.parametrize("name", ["v32", "glm"])
def test_replays_give_the_tokens_of_transformers(
    engines: EnginePool, checkpoints: Checkpoints, name: str
) -> None:
    engine, oracle = engines.get(name, **GRAPHS), oracle_of(checkpoints, name)
    assert engine.runner.model.captured_sizes == [2, 4]
    before = counters()
    assert_parity(engine, oracle, requests_of(oracle, SHAPES, seed=30))
    assert (counters() - before).replays >= 5


@pytest.mark.parametrize(("name", "width"), [("v32", 3), ("glm_shared", 2)])
def test_drafts_are_verified_by_graphs(
    engines: EnginePool, checkpoints: Checkpoints, name: str, width: int
) -> None:
    """One, two and three requests that verify drafts each have a graph.

    Where a chunk of a prompt ends, vLLM 0.27.1's runner for devices gives the draft another token,
    so that acceptance is compared for whole prompts.
    """
    settings = GRAPHS | {
        "compilation_config": {
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [(1 + width) * count for count in (1, 2, 3)],
        },
        "speculative_config": {"method": "mtp", "num_speculative_tokens": width},
    }
    engine, oracle = engines.get(name, **settings), oracle_of(checkpoints, name)
    names = ("num_draft_tokens", "num_accepted_tokens")
    before = [engine.metric(f"vllm:spec_decode_{one}") for one in names]
    replays = counters()
    requests = [
        Request(oracle.clear_prompt(length, 12 + width, seed=60 + length), 12, at)
        for length, at in ((1, 0), (40, 0), (129, 2))
    ]
    results = engine.run(requests)
    assert (counters() - replays).replays >= 4
    assert_all_match(oracle, requests, results)
    after = [engine.metric(f"vllm:spec_decode_{one}") for one in names]
    drafts = V32MtpOracle(oracle)
    expected = [drafts.speculate(r.prompt, r.count, width) for r in requests]
    assert [now - then for now, then in zip(after, before, strict=True)] == [
        sum(one.drafted for one in expected),
        sum(one.accepted for one in expected),
    ]
    assert sum(one.accepted for one in expected) > 0


@pytest.mark.usefixtures("family")
@pytest.mark.parametrize("family_name", ["A3", "A5"])
def test_keys_in_the_rows_of_the_family(
    engines: EnginePool, checkpoints: Checkpoints, family_name: str
) -> None:
    """int8 keys on A3, float8_e4m3fn keys on A5; latents keep the model's dtype.

    A selection can flip, so that single logits have no useful bound.
    """
    oracle = oracle_of(checkpoints, "v32")
    engine = engines.get(
        "v32", additional_config={"device_family": family_name, "cache_dtype": "family"}
    )
    dtypes = {name.split(".")[-1]: cache.dtype for name, cache in engine.caches.items()}
    assert dtypes == {"latent_cache": torch.float32, "index_cache": torch.uint8}
    requests = requests_of(oracle, [(129, 6, 0), (40, 8, 1)], seed=90)
    results = engine.run(requests)
    differences = [
        (result.logits - oracle.picked_logits(request.prompt, result.tokens)).abs().flatten()
        for request, result in zip(requests, results, strict=True)
    ]
    mean = float(torch.cat(differences).mean())
    assert 0 < mean <= MEAN_LOGITS_OF_KEYS[family_name]
    engines.close()


@pytest.mark.parametrize(
    ("config", "operators", "slack"),
    [
        (
            {"cache_dtype": "model"},
            {
                "npu_lightning_indexer",
                "npu_sparse_flash_attention",
                "npu_kv_rmsnorm_rope_cache",
            },
            BFLOAT16_MEAN_SLACK,
        ),
        (
            {"cache_dtype": "family", "latent_cache_dtype": "int8"},
            {"npu_quant_lightning_indexer", "npu_kv_quant_sparse_flash_attention"},
            MEAN_LOGITS_OF_KEYS["A3"],
        ),
    ],
    ids=["bfloat16", "int8"],
)
def test_torch_npu_s_operators_are_called(
    engines: EnginePool,
    checkpoints: Checkpoints,
    config: dict[str, Any],
    operators: set[str],
    slack: float,
) -> None:
    """With the published widths in bfloat16, in prompts and in decode steps."""
    folder = checkpoints.folder("v32_wide", torch.bfloat16)
    engine = engines.get("v32_wide", torch.bfloat16, additional_config=config)
    requests = [
        Request(random_prompt(length, 512, seed=length), 6, prompt_logits=True)
        for length in (40, 3)
    ]
    contract = installed()
    assert contract is not None
    before = len(contract.calls)
    results = engine.run(requests)
    called = {call.op for call in contract.calls[before:]}
    assert operators == ROUTES & called
    exact, rounded = V32Oracle(folder), V32Oracle(folder, torch.bfloat16)
    ours, theirs = [], []
    for request, result in zip(requests, results, strict=True):
        ids = [*request.prompt, *result.tokens[:-1]]
        truth = exact.logits(ids)
        assert result.prompt_logits is not None
        ours.append((torch.cat([result.prompt_logits, result.logits]) - truth).abs().flatten())
        theirs.append((rounded.logits(ids) - truth).abs().flatten())
    error, yardstick = float(torch.cat(ours).mean()), float(torch.cat(theirs).mean())
    assert error <= BFLOAT16_MEAN_RATIO * yardstick + slack, (error, yardstick)
