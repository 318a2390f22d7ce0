"""A model of vLLM's own with latent attention alone: DeepSeek-V2 against transformers."""

from __future__ import annotations

import pytest
from ascend_attention.vllm.mla import AscendMLACache
from ascend_attention.vllm.mla.wrapper import AscendMultiHeadLatentAttentionWrapper
from ascend_ops_core.testing.language_models import random_prompt

from .harness import Checkpoints, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

NAME = "deepseek_v2"


def test_ragged_batch_in_chunks_and_a_prefix(engines: EnginePool, checkpoints: Checkpoints) -> None:
    engine, oracle = engines.get(NAME, enable_prefix_caching=True), checkpoints.oracle(NAME)
    model = engine.runner.get_model()
    ours = [m for m in model.modules() if isinstance(m, AscendMultiHeadLatentAttentionWrapper)]
    assert [type(layer.cache) for layer in ours] == [AscendMLACache] * 2
    shapes = [(1, 12, 0), (129, 6, 0), (64, 10, 1), (400, 8, 3)]
    requests = [Request(random_prompt(n, 300, seed=n), count, at) for n, count, at in shapes]
    with engine.scheduling_at_most(100):
        assert_all_match(oracle, requests, engine.run(requests))
    again = [Request(requests[-1].prompt, 4)]
    results = engine.run(again)
    assert results[0].cached == 384
    assert_all_match(oracle, again, results)
