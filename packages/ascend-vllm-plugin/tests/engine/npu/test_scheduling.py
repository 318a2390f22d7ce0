"""Chunked prefill, prefix caching and preemption on the simulated NPU."""

from __future__ import annotations

import pytest
from ascend_models_deepseek.testing import random_prompt

from ..harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine_npu

SPEC = "mixed"
VOCAB = 512
BLOCK = 256


@pytest.fixture
def caching(engines: EnginePool) -> Engine:
    engine = engines.get(SPEC, enable_prefix_caching=True)
    assert engine.llm.reset_prefix_cache()
    return engine


@pytest.mark.parametrize("chunk", [33, 128])
def test_chunked_prefill(caching: Engine, checkpoints: Checkpoints, chunk: int) -> None:
    requests = [
        Request(random_prompt(n, VOCAB, seed=n), count, join_at)
        for n, count, join_at in ((4, 8, 0), (300, 4, 0), (129, 4, 2))
    ]
    with caching.scheduling_at_most(chunk):
        results = caching.run(requests)
    assert_all_match(checkpoints.oracle(SPEC), requests, results)


def test_a_prefix_is_reused_in_blocks_of_the_device(
    caching: Engine, checkpoints: Checkpoints
) -> None:
    """Compressed blocks hold 256 tokens, so a prefix of 513 tokens gives a hit of 512."""
    prefix = random_prompt(2 * BLOCK + 1, VOCAB, seed=7)
    requests = [
        Request([*prefix, *random_prompt(n, VOCAB, seed=n)], 5, join_at=3 * i)
        for i, n in enumerate((3, 40, 129))
    ]
    results = caching.run(requests)
    assert [result.cached for result in results] == [0, 2 * BLOCK, 2 * BLOCK]
    assert_all_match(checkpoints.oracle(SPEC), requests, results)


def test_generated_tokens_are_reused(caching: Engine, checkpoints: Checkpoints) -> None:
    prompt = random_prompt(BLOCK - 8, VOCAB, seed=5)
    first = caching.generate(prompt, 12)
    follow_up = Request(prompt + first.tokens + random_prompt(3, VOCAB, seed=6), 4)
    result = caching.run([follow_up])[0]
    assert result.cached == BLOCK
    assert_all_match(checkpoints.oracle(SPEC), [follow_up], [result])


def test_preempted_requests_resume_with_their_drafts(
    engines: EnginePool, checkpoints: Checkpoints
) -> None:
    engine = engines.get(
        SPEC,
        max_model_len=32,
        block_size=512,
        num_gpu_blocks_override=18,
        max_num_batched_tokens=64,
        speculative_config={"method": "mtp", "num_speculative_tokens": 2},
    )
    # Five blocks hold a short request at first, one more from its ninth token.
    shapes = ((3, 12), (4, 12), (5, 10), (3, 10), (20, 6))
    requests = [
        Request(random_prompt(length, VOCAB, seed=length), count) for length, count in shapes
    ]
    before = engine.metric("vllm:num_preemptions")
    results = engine.run(requests)
    assert engine.metric("vllm:num_preemptions") >= before + 1
    assert_all_match(checkpoints.oracle(SPEC), requests, results)
