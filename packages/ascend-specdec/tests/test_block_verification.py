"""Block verification where vLLM's sampler verifies one by one: its law, its rows, its seeds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_specdec.vllm import block_verification
from ascend_specdec.vllm.block_verification import sample_in_blocks, use_block_verification
from vllm.v1.sample import rejection_sampler as upstream

VOCABULARY = 5


def metadata(
    temperature: torch.Tensor, generators: dict[int, torch.Generator] | None = None
) -> Any:
    return SimpleNamespace(
        temperature=temperature,
        all_greedy=bool((temperature == 0).all()),
        all_random=bool((temperature != 0).all()),
        generators=generators or {},
    )


def test_the_law_of_a_block_is_the_targets() -> None:
    """20,000 requests with two drafts each, drawn from another law than the target's."""
    torch.manual_seed(0)
    requests, drafts = 20_000, 2
    first, q = torch.randn(VOCABULARY).softmax(-1), torch.randn(2, VOCABULARY).softmax(-1)
    behind = torch.randn(VOCABULARY, VOCABULARY).softmax(-1)
    last = torch.randn(VOCABULARY).softmax(-1)
    drawn = torch.stack([q[i].multinomial(requests, replacement=True) for i in range(2)], dim=1)
    p = torch.stack([first.expand(requests, -1), behind[drawn[:, 0]]], dim=1).flatten(0, 1)
    bonus = last.multinomial(requests, replacement=True).unsqueeze(1)
    out = sample_in_blocks(
        drawn.flatten().int(),
        [drafts] * requests,
        drafts,
        torch.arange(1, requests + 1, dtype=torch.int32) * drafts,
        q.repeat(requests, 1),
        p.log(),
        bonus.int(),
        metadata(torch.ones(requests)),
    )
    # A row that ends early goes on with what the target says by itself.
    token, second = out[:, 0].long(), out[:, 1].long()
    alone = behind[token].multinomial(1).squeeze(1)
    second = torch.where(second < 0, alone, second)
    seen = torch.zeros(VOCABULARY, VOCABULARY)
    seen.index_put_((token, second), torch.ones(requests), accumulate=True)
    expected = requests * first.unsqueeze(1) * behind
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    # 24 degrees of freedom: 99.9 % lie below 51.2.
    assert chi_square < 51.2


def test_greedy_rows_are_verified_one_by_one_beside_random_ones() -> None:
    logits = torch.full((4, VOCABULARY), -1e9)
    best = [3, 1, 2, 0]
    logits[torch.arange(4), best] = 0
    drafts = torch.tensor([3, 4, 2, 0], dtype=torch.int32)
    for temperature in ([0.0, 1.0], [0.0, 0.0], [1.0, 1.0]):
        out = sample_in_blocks(
            drafts,
            [2, 2],
            2,
            torch.tensor([2, 4], dtype=torch.int32),
            None,
            logits,
            torch.tensor([[7], [8]], dtype=torch.int32),
            metadata(torch.tensor(temperature)),
        )
        assert out.tolist() == [[3, 1, -1], [2, 0, 8]]


def test_no_drafts_give_the_bonus() -> None:
    out = sample_in_blocks(
        torch.empty(0, dtype=torch.int32),
        [0],
        0,
        torch.zeros(1, dtype=torch.int32),
        None,
        torch.empty(0, VOCABULARY),
        torch.tensor([[4]], dtype=torch.int32),
        metadata(torch.ones(1)),
    )
    assert out.tolist() == [[4]]


def test_a_seed_decides_whatever_the_neighbours() -> None:
    def row(requests: int) -> list[int]:
        torch.manual_seed(requests)
        generator = torch.Generator().manual_seed(5)
        p = torch.arange(3.0 * VOCABULARY).sin().view(3, VOCABULARY)
        out = sample_in_blocks(
            torch.tensor([1, 2, 3], dtype=torch.int32).repeat(requests),
            [3] * requests,
            3,
            torch.arange(1, requests + 1, dtype=torch.int32) * 3,
            None,
            p.repeat(requests, 1),
            torch.zeros(requests, 1, dtype=torch.int32),
            metadata(torch.ones(requests), {requests - 1: generator}),
        )
        return out[-1].tolist()

    assert row(1) == row(2) == row(7)


def test_a_runner_gets_it_where_it_is_asked_for() -> None:
    sampler = SimpleNamespace(logprobs_mode="raw_logprobs")
    for method, kind in (("standard", str), ("block", block_verification.BlockRejectionSampler)):
        speculative = SimpleNamespace(
            rejection_sample_method=method, draft_sample_method="probabilistic"
        )
        drafter = SimpleNamespace(_enable_probabilistic_draft_probs=False)
        runner = SimpleNamespace(
            speculative_config=speculative,
            sampler=sampler,
            device=torch.device("cpu"),
            rejection_sampler="vLLM's",
            drafter=drafter,
        )
        use_block_verification(runner)
        assert isinstance(runner.rejection_sampler, kind)
        assert drafter._enable_probabilistic_draft_probs == (method == "block")
    use_block_verification(SimpleNamespace(speculative_config=None))


def test_vllm_s_function_is_back_after_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    standard = upstream.rejection_sample
    seen = []
    monkeypatch.setattr(
        upstream.RejectionSampler, "forward", lambda *_: seen.append(upstream.rejection_sample)
    )
    sampler: Any = block_verification.BlockRejectionSampler.__new__(
        block_verification.BlockRejectionSampler
    )
    block_verification.BlockRejectionSampler.forward(sampler)
    assert seen == [sample_in_blocks]
    assert upstream.rejection_sample is standard


def test_upstream_still_verifies_one_by_one() -> None:
    """Otherwise its own way should be looked at again."""
    import inspect

    assert 'rejection_sample_method == "block"' not in inspect.getsource(upstream)
