"""vLLM's own Qwen3-Next on our Gated DeltaNet: logits and greedy tokens against transformers."""

from __future__ import annotations

import pytest
from ascend_attention.vllm.linear.gdn import AscendGatedDeltaNetAttention
from ascend_vllm_plugin.testing import Qwen3NextOracle

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

NAME = "qwen3_next"
LENGTHS = (1, 3, 63, 64, 65, 130, 370)
CHUNKS = {
    7: [(5, 12, 0), (64, 9, 2), (66, 5, 4)],
    64: [(1, 14, 0), (130, 6, 1), (257, 4, 3)],
    65: [(3, 14, 0), (130, 6, 1), (257, 4, 3)],
}


def oracle_of(checkpoints: Checkpoints, name: str = NAME) -> Qwen3NextOracle:
    oracle = checkpoints.oracle(name)
    assert isinstance(oracle, Qwen3NextOracle)
    return oracle


def requests_of(
    oracle: Qwen3NextOracle, shapes: list[tuple[int, int, int]], seed: int = 0
) -> list[Request]:
    """Requests of so many prompt and generated tokens, and the steps at which they join."""
    return [
        Request(oracle.clear_prompt(length, count, seed=seed + length), count, at)
        for length, count, at in shapes
    ]


@pytest.fixture
def engine(engines: EnginePool) -> Engine:
    engine = engines.get(NAME, enable_prefix_caching=True)
    assert engine.llm.reset_prefix_cache()
    return engine


def test_prompts_together(engine: Engine, checkpoints: Checkpoints) -> None:
    layers = engine.engine.vllm_config.compilation_config.static_forward_context.values()
    ours = [layer for layer in layers if isinstance(layer, AscendGatedDeltaNetAttention)]
    assert len(ours) == 3
    oracle = oracle_of(checkpoints)
    requests = requests_of(oracle, [(n, 16, 0) for n in LENGTHS])
    assert_all_match(oracle, requests, engine.run(requests))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_share_steps_with_decodes(
    engine: Engine, checkpoints: Checkpoints, chunk: int
) -> None:
    oracle = oracle_of(checkpoints)
    requests = requests_of(oracle, CHUNKS[chunk], seed=100)
    with engine.scheduling_at_most(chunk):
        results = engine.run(requests)
    assert len({result.finished_at for result in results}) >= 2
    assert_all_match(oracle, requests, results)


def test_shared_prefix_with_other_endings(engine: Engine, checkpoints: Checkpoints) -> None:
    """The second run starts from the states at the end of the prefix's blocks."""
    oracle = oracle_of(checkpoints)
    unit = engine.engine.vllm_config.cache_config.block_size
    whole = [oracle.clear_prompt(300 + n, 8, seed=1) for n in (1, 3, 129)]
    assert all(one[:300] == whole[0][:300] for one in whole)
    engine.run([Request(whole[0][:300], 2)])
    requests = [Request(prompt, 8, join_at=i) for i, prompt in enumerate(whole)]
    with engine.scheduling_at_most(150):
        results = engine.run(requests)
    assert [result.cached for result in results] == [300 // unit * unit] * 3
    assert_all_match(oracle, requests, results)


def test_preempted_requests_resume(engines: EnginePool, checkpoints: Checkpoints) -> None:
    """Another model: three value heads for a key head, odd widths, a convolution of three."""
    name = "qwen3_next_odd"
    oracle = oracle_of(checkpoints, name)
    engine = engines.get(
        name,
        max_model_len=512,
        num_gpu_blocks_override=10,
        max_num_batched_tokens=128,
        max_num_seqs=16,
    )
    shapes = [(120, 20, 0), (100, 40, 1), (125, 30, 2), (61, 80, 3), (9, 20, 4), (130, 10, 5)]
    requests = requests_of(oracle, shapes)
    before = engine.metric("vllm:num_preemptions")
    results = engine.run(requests)
    assert engine.metric("vllm:num_preemptions") > before
    assert_all_match(oracle, requests, results)
