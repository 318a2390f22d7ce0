"""DeepSeek-V3 on the real engine: logits and greedy tokens against transformers."""

from __future__ import annotations

import pytest
from ascend_models_deepseek.testing import FLOAT32_LOGITS_ATOL, random_prompt

from .harness import Checkpoints, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

LENGTHS = (1, 3, 17, 127, 128, 129, 370)


@pytest.mark.parametrize("name", ["v3", "v3_plain"])
def test_prompts_together(engines: EnginePool, checkpoints: Checkpoints, name: str) -> None:
    vocab = checkpoints.spec(name).vocab_size
    requests = [Request(random_prompt(n, vocab, seed=n), 24) for n in LENGTHS]
    engine = engines.get(name, enable_prefix_caching=True)
    assert_all_match(checkpoints.oracle(name), requests, engine.run(requests))
