"""What keeps seeds, and what vLLM does without it."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_specdec.vllm.seeds import sample_drafts


def metadata(generators: dict[int, torch.Generator], temperature: list[float]) -> Any:
    return SimpleNamespace(
        generators=generators, temperature=torch.tensor(temperature), all_greedy=False
    )


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_drafts_follow_from_a_seed_and_the_step() -> None:
    logits = torch.zeros(1, 500)
    alone = seeded(7)
    first = [int(sample_drafts(logits.clone(), metadata({0: alone}, [1.0]))[0]) for _ in range(3)]
    assert len(set(first)) == 3
    # Another row, other neighbours, a generator of the same state.
    others = {0: seeded(1), 1: seeded(7), 2: seeded(2)}
    three = metadata(others, [1.0, 1.0, 1.0])
    again = [int(sample_drafts(torch.zeros(3, 500), three)[0][1]) for _ in range(3)]
    assert again == first
    # What the target draws is not drawn again for drafts, and its state is not moved.
    assert torch.equal(alone.get_state(), seeded(7).get_state())
    torch.rand(1, generator=alone)
    moved = int(sample_drafts(logits.clone(), metadata({0: alone}, [1.0]))[0])
    assert moved != first[0]


def test_drafts_have_the_law_that_they_are_said_to_have() -> None:
    """Chi-square over 20,000 draws; the bound is exceeded once in a million by chance."""
    torch.manual_seed(0)
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5, 2.0]).repeat(20_000, 1)
    temperature = torch.full((20_000,), 0.7).tolist()
    tokens, probs = sample_drafts(logits.clone(), metadata({}, temperature))
    torch.testing.assert_close(probs, (logits / 0.7).softmax(dim=-1))
    seen = torch.bincount(tokens, minlength=5).double()
    expected = probs[0].double() * 20_000
    assert float(((seen - expected) ** 2 / expected).sum()) < 33


def test_greedy_rows_draft_the_most_probable_token() -> None:
    logits = torch.randn(6, 40)
    given = metadata({1: seeded(3)}, [0.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    tokens, probs = sample_drafts(logits.clone(), given)
    for row in (0, 1, 3, 5):
        assert tokens[row] == logits[row].argmax()
        torch.testing.assert_close(probs[row], logits[row].softmax(dim=-1))


@pytest.mark.engine
def test_upstream_still_moves_a_cpu_s_generator_by_an_offset() -> None:
    from vllm.v1.spec_decode import llm_base_proposer as proposer
    from vllm.v1.worker import gpu_model_runner as runner

    with pytest.raises(RuntimeError, match="offset"):
        seeded(0).get_offset()
    source = inspect.getsource(runner)
    assert "gen.set_offset(gen.get_offset() - 4)" in source, (
        "vLLM rewinds generators otherwise: see whether keep_seeds is still needed"
    )
    assert "TODO(woosuk): Consider seeds." in inspect.getsource(proposer), (
        "vLLM draws drafts by seeds: see whether sample_drafts is still needed"
    )


@pytest.mark.engine
def test_a_seed_holds_beside_a_request_without_one() -> None:
    from ascend_specdec.vllm.seeds import keep_seeds
    from vllm.v1.sample.ops import topk_topp_sampler as upstream

    assert "if len(generators) != logits.shape[0]" in inspect.getsource(upstream), (
        "vLLM minds single seeds on a CPU: see whether keep_seeds is still needed for that"
    )
    for _ in range(2):
        keep_seeds()
    sampler = upstream.TopKTopPSampler()
    drawn = [
        int(sampler.forward_cpu(torch.zeros(2, 500), {1: seeded(4)}, None, None)[0][1])
        for _ in range(3)
    ]
    assert len(set(drawn)) == 1
