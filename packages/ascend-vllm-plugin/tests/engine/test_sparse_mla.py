"""DeepSeek-V3.2 and GLM-5 on the real engine: logits and greedy tokens against transformers.

One engine a model serves every length, chunk size, ragged batch and prefix hit; that selection
matters is shown for the very sequences that are compared.
"""

from __future__ import annotations

import pytest
from ascend_models_deepseek.testing.oracle_v32 import V32Oracle

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

MODELS = ("v32", "glm")
LEAST_EFFECT = 0.05


def requests_of(
    oracle: V32Oracle, shapes: list[tuple[int, int, int]], seed: int = 0
) -> list[Request]:
    """Requests of so many prompt tokens, generated tokens, and step of joining."""
    return [
        Request(oracle.clear_prompt(length, count, seed=seed + length), count, at)
        for length, count, at in shapes
    ]


def assert_parity(engine: Engine, oracle: V32Oracle, requests: list[Request]) -> None:
    """Logits and tokens equal the oracle's, which all differ once every token is selected."""
    top_k = oracle.model.config.index_topk
    results = engine.run(requests)
    assert_all_match(oracle, requests, results)
    sequences = [[*r.prompt, *o.tokens] for r, o in zip(requests, results, strict=True)]
    longer = [ids for ids in sequences if len(ids) > top_k + 8]
    assert longer
    assert all(oracle.selection_effect(ids) > LEAST_EFFECT for ids in longer)


@pytest.fixture(params=MODELS, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def oracle(checkpoints: Checkpoints, name: str) -> V32Oracle:
    oracle = checkpoints.oracle(name)
    assert isinstance(oracle, V32Oracle)
    return oracle


@pytest.fixture
def engine(engines: EnginePool, name: str) -> Engine:
    engine = engines.get(name, enable_prefix_caching=True)
    assert engine.llm.reset_prefix_cache()
    return engine


def test_lengths_around_the_top_k_in_one_ragged_batch(engine: Engine, oracle: V32Oracle) -> None:
    k = oracle.model.config.index_topk
    shapes = [(1, 12, 0), (k - 1, 8, 0), (k, 8, 1), (k + 1, 8, 2), (127, 6, 3), (129, 20, 4)]
    assert_parity(engine, oracle, requests_of(oracle, [*shapes, (300, 8, 6)]))


@pytest.mark.parametrize("chunk", [7, 100])
def test_chunks_share_steps_with_decodes(engine: Engine, oracle: V32Oracle, chunk: int) -> None:
    requests = requests_of(oracle, [(5, 20, 0), (64, 8, 1), (130, 8, 2)], seed=500)
    with engine.scheduling_at_most(chunk):
        assert_parity(engine, oracle, requests)


def test_prefix_hits_change_nothing(engine: Engine, oracle: V32Oracle) -> None:
    request = requests_of(oracle, [(300, 8, 0)], seed=50)[0]
    results = [engine.run([request])[0] for _ in range(2)]
    assert [result.cached > 0 for result in results] == [False, True]
    assert_all_match(oracle, [request, request], results)
    assert oracle.selection_effect(request.prompt) > LEAST_EFFECT


SMALL_CACHE = {"num_gpu_blocks_override": 6, "max_num_batched_tokens": 128, "max_model_len": 512}


def test_preempted_requests_resume(engines: EnginePool, oracle: V32Oracle, name: str) -> None:
    engine = engines.get(name, **SMALL_CACHE)
    shapes = [(100, 60, 0), (90, 50, 1), (120, 40, 2), (5, 30, 3), (110, 40, 4)]
    before = engine.metric("vllm:num_preemptions")
    requests = requests_of(oracle, shapes, seed=700)
    results = engine.run(requests)
    assert engine.metric("vllm:num_preemptions") > before
    assert_all_match(oracle, requests, results)
