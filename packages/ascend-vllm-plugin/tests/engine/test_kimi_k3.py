"""Kimi-K3's text model on the real engine, against its formulas."""

from __future__ import annotations

from typing import Any

import pytest
from ascend_models_kimi.testing import K3Oracle

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match
from .test_kimi_linear import SPECULATION, Prophet

pytestmark = pytest.mark.engine

TEXT: dict[str, Any] = {"hf_overrides": {"architectures": ["KimiLinearForCausalLM"]}}
SHAPES = [(1, 6, 0), (63, 5, 0), (65, 5, 1), (130, 4, 2)]


def oracle_of(checkpoints: Checkpoints, name: str) -> K3Oracle:
    oracle = checkpoints.oracle(name)
    assert isinstance(oracle, K3Oracle)
    return oracle


def requests_of(
    oracle: K3Oracle, shapes: list[tuple[int, int, int]], seed: int = 0
) -> list[Request]:
    """Requests of so many prompt and generated tokens, and the steps at which they join."""
    return [
        Request(oracle.clear_prompt(length, count, seed=seed + length), count, at)
        for length, count, at in shapes
    ]


@pytest.fixture
def engine(engines: EnginePool) -> Engine:
    """With its own drafts, and room for little more than one request."""
    drafts = {"method": "mtp", "num_speculative_tokens": 2}
    return engines.get(
        "k3",
        enable_prefix_caching=True,
        max_model_len=512,
        num_gpu_blocks_override=24,
        speculative_config=drafts,
        **TEXT,
    )


def test_a_ragged_batch_in_chunks(engine: Engine, checkpoints: Checkpoints) -> None:
    oracle = oracle_of(checkpoints, "k3")
    requests = requests_of(oracle, SHAPES)
    with engine.scheduling_at_most(64):
        assert_all_match(oracle, requests, engine.run(requests))


def test_preempted_requests_resume(engine: Engine, checkpoints: Checkpoints) -> None:
    oracle = oracle_of(checkpoints, "k3")
    unit = engine.engine.vllm_config.cache_config.block_size
    requests = requests_of(oracle, [(unit - 9, 20, 0), (unit - 5, 16, 1), (unit - 3, 12, 2)])
    before = engine.metric("vllm:num_preemptions")
    results = engine.run(requests)
    assert engine.metric("vllm:num_preemptions") > before
    assert_all_match(oracle, requests, results)


def test_without_what_may_be_absent(
    engines: EnginePool, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gates of low rank without a bound, no output gate, groups of experts; drafts, prefixes."""
    name = "k3_odd"
    oracle = oracle_of(checkpoints, name)
    engine = engines.get(name, enable_prefix_caching=True, speculative_config=SPECULATION, **TEXT)
    requests = requests_of(oracle, [(1, 6, 0), (125, 12, 0), (40, 6, 1)])
    prophet = Prophet(oracle, requests, oracle.config["vocab_size"])
    monkeypatch.setattr(engine.runner.drafter, "propose", prophet)
    with engine.scheduling_at_most(70):
        results = engine.run(requests)
    assert_all_match(oracle, requests, results)
    again = [Request(requests[1].prompt + results[1].tokens, 3)]
    results = engine.run(again)
    assert results[0].cached == 128
    assert_all_match(oracle, again, results)
