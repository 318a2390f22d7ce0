"""MiniMax-M3 on the simulated NPU against transformers, with and without graphs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_models_minimax.testing import M3_SPECS, M3Oracle, write_m3_checkpoint
from ascend_ops_core.testing.forked_programs import ForkedPrograms
from ascend_ops_core.testing.language_models import FLOAT32_LOGITS_ATOL
from ascend_ops_core.testing.simulated_npu import counters
from safetensors.torch import load_file

from ..harness import Checkpoints, EnginePool, assert_all_match
from ..test_minimax_m3 import TEXT, assert_parity, requests_of
from .test_processes import GENERATE, SETTINGS, TIMEOUT_S, command

pytestmark = pytest.mark.engine_npu

GRAPHS: dict[str, Any] = {
    "enforce_eager": False,
    "max_num_seqs": 8,
    "compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [2, 4]},
}
SHAPES = [(1, 8, 0), (129, 6, 0), (16, 10, 1), (25, 8, 3), (200, 5, 4)]
NAME = "m3"


def oracle_of(checkpoints: Checkpoints) -> M3Oracle:
    oracle = checkpoints.oracle(NAME)
    assert isinstance(oracle, M3Oracle)
    return oracle


def test_a_ragged_batch_in_chunks(engines: EnginePool, checkpoints: Checkpoints) -> None:
    engine, oracle = engines.get(NAME, **TEXT), oracle_of(checkpoints)
    assert {cache.device for cache in engine.caches.values()} == {torch.device("npu", 0)}
    with engine.scheduling_at_most(100):
        assert_parity(engine, oracle, requests_of(oracle, SHAPES))


def test_replays_give_the_tokens_of_transformers(
    engines: EnginePool, checkpoints: Checkpoints
) -> None:
    engine, oracle = engines.get(NAME, **GRAPHS, **TEXT), oracle_of(checkpoints)
    assert engine.runner.model.captured_sizes == [2, 4]
    before = counters()
    assert_parity(engine, oracle, requests_of(oracle, SHAPES, seed=30))
    assert (counters() - before).replays >= 5


def test_drafts_are_the_oracle_s(engines: EnginePool, checkpoints: Checkpoints) -> None:
    settings = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}
    engine, oracle = engines.get(NAME, **settings, **TEXT), oracle_of(checkpoints)
    requests = requests_of(oracle, [(1, 10, 0), (40, 10, 0), (129, 8, 2)], seed=60)
    assert_all_match(oracle, requests, engine.run(requests))


def test_whole_experts_on_two_ranks_with_drafts_and_graphs(
    programs: ForkedPrograms, tmp_path: Path
) -> None:
    """Expert parallelism over gloo, with experts that cannot be halved; one sum in every layer."""
    count = 10
    spec = replace(M3_SPECS["m3"], num_local_experts=7)
    oracle = M3Oracle(write_m3_checkpoint(spec, tmp_path / "checkpoint"))
    prompts = [oracle.clear_prompt(length, count, seed=length) for length in (1, 129)]
    settings = (
        SETTINGS
        | TEXT
        | {
            "model": str(tmp_path / "checkpoint"),
            "tensor_parallel_size": 2,
            "enable_expert_parallel": True,
            "max_num_batched_tokens": 100,
            "enforce_eager": False,
            "compilation_config": {
                "cudagraph_mode": "FULL_DECODE_ONLY",
                "cudagraph_capture_sizes": [3, 9],
            },
            "logprobs_mode": "raw_logits",
            "max_logprobs": -1,
            "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
            "worker_extension_cls": "experts_probe.ExpertsProbe",
        }
    )
    given = {"settings": settings, "prompts": prompts, "count": count, "reductions": True}
    result = tmp_path / "result.safetensors"
    programs.run(GENERATE, command(given, result), tmp_path / "log", TIMEOUT_S)
    stored = load_file(result)
    for i, prompt in enumerate(prompts):
        tokens = stored[f"tokens.{i}"].tolist()
        expected = oracle.picked_logits(prompt, tokens)
        assert len(tokens) == count
        assert float((stored[f"logits.{i}"] - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert expected.argmax(-1).tolist() == tokens
    # Of the steps that no graph replays.
    assert all(set(stored[f"reductions.{rank}"].tolist()) == {1} for rank in range(2))
