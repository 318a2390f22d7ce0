"""DeepSeek-V3.2 and GLM-5 speculating with the checkpoint's own draft layer."""

from __future__ import annotations

import pytest
from ascend_models_deepseek.testing.oracle_v32 import V32MtpOracle, V32Oracle

from .harness import Checkpoints, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(("name", "width"), [("v32", 1), ("v32", 3), ("glm", 2), ("glm_shared", 3)])
def test_tokens_and_acceptance(
    engines: EnginePool, checkpoints: Checkpoints, name: str, width: int
) -> None:
    """Tokens and logits are the target's, and as many drafts are right as transformers says.

    GLM-5's config may ask for one selection for all steps of a draft: others are right then.
    """
    oracle = checkpoints.oracle(name)
    assert isinstance(oracle, V32Oracle)
    engine = engines.get(
        name,
        enable_prefix_caching=True,
        speculative_config={"method": "mtp", "num_speculative_tokens": width},
    )
    shapes = [(1, 24, 0), (40, 24, 0), (129, 12, 2)]
    requests = [
        Request(oracle.clear_prompt(length, count + width, seed=length), count, at)
        for length, count, at in shapes
    ]
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    before = [engine.metric(f"vllm:spec_decode_{one}") for one in names]
    with engine.scheduling_at_most(100):
        results = engine.run(requests)
    after = [engine.metric(f"vllm:spec_decode_{one}") for one in names]
    assert_all_match(oracle, requests, results)
    assert oracle.selection_effect([*requests[-1].prompt, *results[-1].tokens]) > 0.05
    drafts = V32MtpOracle(oracle)
    expected = [drafts.speculate(r.prompt, r.count, width) for r in requests]
    assert sum(one.accepted for one in expected) > 0
    assert [a - b for a, b in zip(after, before, strict=True)] == [
        sum(one.rounds for one in expected),
        sum(one.drafted for one in expected),
        sum(one.accepted for one in expected),
    ]
    if name == "glm_shared":
        apart = V32MtpOracle(checkpoints.oracle("glm"))
        assert expected != [apart.speculate(r.prompt, r.count, width) for r in requests]
