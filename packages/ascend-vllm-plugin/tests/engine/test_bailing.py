"""vLLM's own Ling 2.5 on our lightning and latent attention: logits and greedy tokens."""

from __future__ import annotations

from typing import Any

import pytest
from ascend_attention.vllm.linear.bailing import AscendBailingMoELinearAttention
from ascend_attention.vllm.linear.latent import AscendHybridMLACache
from ascend_ops_core.testing.language_models import random_prompt

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match, assert_clear_match

pytestmark = pytest.mark.engine

NAME = "bailing"
# Six long requests do not fit at once.
SETTINGS: dict[str, Any] = {
    "enable_prefix_caching": True,
    "max_model_len": 512,
    "num_gpu_blocks_override": 12,
}
LENGTHS = (1, 3, 63, 64, 65, 130, 370)


def requests_of(shapes: list[tuple[int, int, int]], seed: int) -> list[Request]:
    """Requests of so many prompt and generated tokens, and the steps at which they join."""
    return [
        Request(random_prompt(length, 300, seed=seed + length), count, at)
        for length, count, at in shapes
    ]


@pytest.fixture
def engine(engines: EnginePool) -> Engine:
    engine = engines.get(NAME, **SETTINGS)
    assert engine.llm.reset_prefix_cache()
    return engine


def test_prompts_together(engine: Engine, checkpoints: Checkpoints) -> None:
    layers = engine.engine.vllm_config.compilation_config.static_forward_context
    kinds = [type(layer) for layer in layers.values()]
    assert kinds.count(AscendBailingMoELinearAttention) == 2
    assert kinds.count(AscendHybridMLACache) == 2
    shapes = [(length, 12, 0) for length in LENGTHS]
    oracle = checkpoints.oracle(NAME)
    assert_clear_match(engine, oracle, lambda seed: requests_of(shapes, seed))


def test_chunks_share_steps_with_decodes(engine: Engine, checkpoints: Checkpoints) -> None:
    oracle = checkpoints.oracle(NAME)
    with engine.scheduling_at_most(65):
        assert_clear_match(
            engine, oracle, lambda seed: requests_of([(3, 14, 0), (130, 6, 1), (257, 4, 3)], seed)
        )


def test_shared_prefix_with_other_endings(engine: Engine, checkpoints: Checkpoints) -> None:
    """The second run starts from the states at the end of the prefix's blocks."""
    oracle = checkpoints.oracle(NAME)
    unit = engine.engine.vllm_config.cache_config.block_size
    whole = [random_prompt(300, 300, seed=1) + random_prompt(n, 300, seed=n) for n in (1, 3, 129)]
    engine.run([Request(whole[0][:300], 2)])
    requests = [Request(prompt, 8, join_at=i) for i, prompt in enumerate(whole)]
    with engine.scheduling_at_most(150):
        results = engine.run(requests)
    assert [result.cached for result in results] == [300 // unit * unit] * 3
    assert_all_match(oracle, requests, results)


def test_preempted_requests_resume(engine: Engine, checkpoints: Checkpoints) -> None:
    oracle = checkpoints.oracle(NAME)
    shapes = [(120, 20, 0), (100, 40, 1), (125, 30, 2), (61, 80, 3), (9, 20, 4), (130, 10, 5)]
    before = engine.metric("vllm:num_preemptions")
    assert_clear_match(engine, oracle, lambda seed: requests_of(shapes, seed))
    assert engine.metric("vllm:num_preemptions") > before
