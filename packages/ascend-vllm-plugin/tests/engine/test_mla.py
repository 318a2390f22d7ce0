"""DeepSeek-V3 on the real engine: logits, greedy tokens and drafts against transformers."""

from __future__ import annotations

import pytest
from ascend_models_deepseek.testing import FLOAT32_LOGITS_ATOL, random_prompt
from ascend_models_deepseek.testing.oracle_v3 import V3MtpOracle

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

SPEC = "v3"
VOCAB = 512
LENGTHS = (1, 3, 17, 127, 128, 129, 370)


@pytest.fixture
def engine(engines: EnginePool) -> Engine:
    engine = engines.get(SPEC, enable_prefix_caching=True)
    assert engine.llm.reset_prefix_cache()
    return engine


def test_prompts_together(engine: Engine, checkpoints: Checkpoints) -> None:
    requests = [Request(random_prompt(n, VOCAB, seed=n), 24) for n in LENGTHS]
    assert_all_match(checkpoints.oracle(SPEC), requests, engine.run(requests))


@pytest.mark.parametrize("chunk", [7, 64, 129])
def test_chunks_share_steps_with_decodes(
    engine: Engine, checkpoints: Checkpoints, chunk: int
) -> None:
    lengths = (5, 64, 130) if chunk < 64 else (3, 128, 257, 370)
    requests = [
        Request(random_prompt(length, VOCAB, seed=length + chunk), 16, join_at=2 * i)
        for i, length in enumerate(lengths)
    ]
    with engine.scheduling_at_most(chunk):
        results = engine.run(requests)
    assert len({result.finished_at for result in results}) >= 3
    assert_all_match(checkpoints.oracle(SPEC), requests, results)


def test_shared_prefix_with_other_endings(engine: Engine, checkpoints: Checkpoints) -> None:
    prefix = random_prompt(300, VOCAB, seed=1)
    engine.run([Request(prefix, 2)])
    requests = [
        Request(prefix + random_prompt(n, VOCAB, seed=40 + n), 8, join_at=i)
        for i, n in enumerate((1, 3, 129))
    ]
    with engine.scheduling_at_most(50):
        results = engine.run(requests)
    assert [result.cached for result in results] == [256, 256, 256]
    assert_all_match(checkpoints.oracle(SPEC), requests, results)


def test_prompt_logits(engine: Engine, checkpoints: Checkpoints) -> None:
    request = Request(random_prompt(200, VOCAB, seed=11), 1, prompt_logits=True)
    result = engine.run([request])[0]
    assert result.prompt_logits is not None
    expected = checkpoints.oracle(SPEC).clear_logits(request.prompt)[:-1]
    assert float((result.prompt_logits - expected).abs().max()) <= FLOAT32_LOGITS_ATOL


def test_preempted_requests_resume(engines: EnginePool, checkpoints: Checkpoints) -> None:
    """Another model: no query latent, no YaRN, no groups of experts, sizes that are odd."""
    name = "v3_plain"
    vocab = checkpoints.spec(name).vocab_size
    engine = engines.get(
        name,
        block_size=16,
        max_model_len=512,
        num_gpu_blocks_override=34,
        max_num_batched_tokens=128,
        max_num_seqs=16,
    )
    shapes = ((3, 90), (20, 80), (5, 100), (9, 64), (61, 64), (12, 70), (4, 100), (130, 64))
    requests = [
        Request(random_prompt(length, vocab, seed=length), count, join_at=i)
        for i, (length, count) in enumerate(shapes)
    ]
    before = engine.metric("vllm:num_preemptions")
    results = engine.run(requests)
    assert engine.metric("vllm:num_preemptions") >= before + 2
    assert_all_match(checkpoints.oracle(name), requests, results)


@pytest.mark.parametrize("width", [1, 3])
def test_drafts(engines: EnginePool, checkpoints: Checkpoints, width: int) -> None:
    """The target's tokens, and as many right drafts as transformers' MTP layer says.

    Where a chunk of a prompt ends, vLLM 0.27.1 gives the draft the prompt's last token instead of
    the next one, so acceptance is compared for whole prompts alone.
    """
    engine = engines.get(
        SPEC,
        enable_prefix_caching=True,
        speculative_config={"method": "mtp", "num_speculative_tokens": width},
    )
    shapes = [(1, 20, 0), (4, 30, 0), (370, 20, 0), (127, 15, 2), (129, 12, 5), (255, 20, 9)]
    requests = [
        Request(random_prompt(n, VOCAB, seed=n), count, join_at) for n, count, join_at in shapes
    ]
    before = counters(engine)
    results = engine.run(requests)
    reported = [now - then for now, then in zip(counters(engine), before, strict=True)]
    oracle = checkpoints.oracle(SPEC)
    assert_all_match(oracle, requests, results)
    drafts = V3MtpOracle(oracle)
    expected = [drafts.speculate(r.prompt, r.count, width) for r in requests]
    accepted = sum(one.accepted for one in expected)
    assert 0 < accepted < sum(one.drafted for one in expected)
    assert reported == [sum(one.drafted for one in expected), accepted]
    # What follows a hit has drafts over cached rows of the draft's own layer.
    longest = engine.engine.model_config.max_model_len
    again = [
        Request(requests[2].prompt, 12),
        Request(random_prompt(longest - 9, VOCAB, seed=4), 9),
    ]
    with engine.scheduling_at_most(100):
        results = engine.run(again)
    assert results[0].cached > 0
    assert_all_match(oracle, again, results)


def counters(engine: Engine) -> list[float]:
    names = ("num_draft_tokens", "num_accepted_tokens")
    return [engine.metric(f"vllm:spec_decode_{name}") for name in names]
