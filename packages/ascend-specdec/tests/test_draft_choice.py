"""How drafts are chosen: best ones, drawn ones, and DFlash2's walk, beside plain torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_specdec.qwen3_blocks.config import SelectorSpec
from ascend_specdec.qwen3_blocks.model import AscendDFlashQwen3ForCausalLM
from ascend_specdec.qwen3_blocks.selector import CandidateSelector
from ascend_specdec.testing.block_oracle import random_draft
from ascend_specdec.testing.dense_block_draft import DenseDraftConfig
from ascend_specdec.vllm.draft_choice import DraftChoice

VOCABULARY = 12


def metadata(temperature: list[float], seeds: dict[int, int] | None = None) -> Any:
    rows = torch.tensor(temperature)
    generators = {row: torch.Generator().manual_seed(s) for row, s in (seeds or {}).items()}
    return SimpleNamespace(
        temperature=rows, all_greedy=bool((rows == 0).all()), generators=generators
    )


def selector(softcap: float | None) -> tuple[CandidateSelector, Any]:
    """A selector and the same in plain torch."""
    config = DenseDraftConfig(
        "dflash2", (0,), hidden_size=16, target_hidden_size=16, layers=1, vocab_size=VOCABULARY,
        rank=8, candidates=4, output_scale=1.5, softcap=softcap,
    )  # fmt: skip
    dense = random_draft(config, seed=3)
    ours = CandidateSelector(SelectorSpec(8, 4, 1.0, 1.5, softcap), 16, VOCABULARY, torch.float32)
    stored = dense.candidate_selector.state_dict()
    ours.load_state_dict({name.removesuffix(".weight"): one for name, one in stored.items()})
    return ours, dense


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_the_walk_goes_as_in_plain_torch(softcap: float | None) -> None:
    torch.manual_seed(0)
    ours, dense = selector(softcap)
    hidden, logits = torch.randn(5, 3, 16), 3 * torch.randn(5, 3, VOCABULARY)
    anchors = torch.randint(0, VOCABULARY, (5,))
    drafts, laws = ours.choose(hidden, logits, anchors, DraftChoice(None))
    assert laws is None
    for request in range(5):
        token = anchors[request]
        for place in range(3):
            candidates, scores = dense.scores(logits[request, place])
            edges = scores + dense.edge(hidden[request, place], token, candidates)
            token = candidates[edges.argmax()]
            assert int(drafts[request, place]) == int(token)


def test_drawn_candidates_have_the_law_that_is_told() -> None:
    torch.manual_seed(1)
    ours, dense = selector(None)
    requests = 20_000
    hidden = torch.randn(1, 2, 16).expand(requests, -1, -1)
    logits = torch.randn(1, 2, VOCABULARY).expand(requests, -1, -1)
    anchors = torch.full((requests,), 4)
    choice = DraftChoice(metadata([1.0] * requests), probabilistic=True)
    drafts, laws = ours.choose(hidden, logits, anchors, choice)
    assert laws is not None
    # The law of the second place depends on what was drawn for the first.
    for first in drafts[:, 0].unique():
        chosen = drafts[:, 0] == first
        law = laws[chosen][0, 1]
        assert int((law > 0).sum()) == 4
        candidates, scores = dense.scores(logits[0, 1])
        edges = scores + dense.edge(hidden[0, 1], first, candidates)
        torch.testing.assert_close(law[candidates], edges.softmax(-1), atol=1e-5, rtol=1e-4)
        seen = torch.bincount(drafts[chosen, 1], minlength=VOCABULARY)[law > 0].double()
        expected = int(chosen.sum()) * law[law > 0].double()
        # 3 degrees of freedom: 99.9 % lie below 16.3.
        assert float(((seen - expected) ** 2 / expected).sum()) < 16.3


def test_cold_requests_take_the_best_beside_warm_ones() -> None:
    torch.manual_seed(2)
    logits = torch.randn(3, VOCABULARY)
    choice = DraftChoice(metadata([0.0, 1.0, 0.0]), probabilistic=True)
    tokens, law = choice(logits)
    assert not choice.greedy
    assert tokens[::2].tolist() == logits.argmax(-1)[::2].tolist()
    torch.testing.assert_close(law.sum(-1), torch.ones(3))
    for cold in (metadata([0.0, 0.0]), None):
        assert DraftChoice(cold, probabilistic=True).greedy
    assert DraftChoice(metadata([1.0])).greedy


def test_a_seed_decides_and_discarded_drafts_do_not_move_it_on() -> None:
    logits = torch.arange(2.0 * VOCABULARY).sin().view(2, VOCABULARY)

    def drawn(noise: int, unused: frozenset[int] = frozenset()) -> tuple[int, int]:
        given = metadata([1.0, 1.0], {1: 7})
        torch.manual_seed(noise)
        tokens, _ = DraftChoice(given, True, unused)(logits)
        left = int(torch.randint(0, 1 << 30, (), generator=given.generators[1]))
        return int(tokens[1]), left

    assert drawn(0) == drawn(1)
    fresh = int(torch.randint(0, 1 << 30, (), generator=torch.Generator().manual_seed(7)))
    assert drawn(0, frozenset({1}))[1] == fresh
    assert drawn(0)[1] != fresh


def test_a_smaller_head_speaks_of_the_target_s_tokens() -> None:
    draft: Any = SimpleNamespace(
        draft_to_target=torch.tensor([3, 5, 11]), spec=SimpleNamespace(vocab_size=VOCABULARY)
    )
    tokens = AscendDFlashQwen3ForCausalLM.in_target(draft, torch.tensor([[2, 0]]))
    assert tokens.tolist() == [[11, 3]]
    law = torch.tensor([[0.2, 0.5, 0.3]])
    wide = AscendDFlashQwen3ForCausalLM.law_in_target(draft, law)
    assert wide is not None
    assert wide[0, [3, 5, 11]].tolist() == pytest.approx([0.2, 0.5, 0.3])
    assert float(wide.sum()) == pytest.approx(1)
    assert AscendDFlashQwen3ForCausalLM.law_in_target(draft, None) is None
