"""DSpark's walk through a block, and how sure it is of each place."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.layers.block_drafts import (
    BlockShape,
    confidences,
    markov_drafts,
    places_of,
)
from ascend_ops_core.layers.draft_heads import DSparkConfidenceHead, DSparkMarkovHead


class Choose:
    """The best token, or, where drafts are drawn, the worst one."""

    def __init__(self, greedy: bool) -> None:
        self.greedy = greedy

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        best = logits.argmax(-1) if self.greedy else logits.argmin(-1)
        return best, logits.softmax(-1)


def markov_head(vocabulary: int, drafts: int) -> DSparkMarkovHead:
    torch.manual_seed(0)
    head = DSparkMarkovHead(vocabulary, drafts, 3, torch.float32)
    for parameter in head.parameters():
        parameter.data.normal_()
    return head


def test_rows_of_a_block() -> None:
    from_anchor = BlockShape(4, 9, 9, (0,), 4, 1, True)
    behind = BlockShape(4, 9, 9, (0,), 4, 1, False)
    assert (from_anchor.queries(3), behind.queries(3)) == (3, 4)
    hidden = torch.randn(2, 4, 5)
    assert torch.equal(places_of(hidden, True), hidden)
    assert torch.equal(places_of(hidden, False), hidden[:, 1:])


@pytest.mark.parametrize("greedy", [True, False])
def test_each_place_is_corrected_by_the_token_in_front_of_it(greedy: bool) -> None:
    head, choose = markov_head(9, 5), Choose(greedy)
    to_target = torch.tensor([8, 3, 5, 0, 7])
    base, anchors = torch.randn(2, 4, 5), torch.tensor([1, 6])
    tokens, laws = markov_drafts(base, anchors, head, choose, lambda one: to_target[one])
    assert tokens.shape == (2, 4)
    for row in range(2):
        before = int(anchors[row])
        for place in range(4):
            logits = base[row, place] + head.markov_w2 @ head.markov_w1[before]
            before = int(to_target[logits.argmax() if greedy else logits.argmin()])
            assert int(tokens[row, place]) == before
            if laws is not None:
                torch.testing.assert_close(laws[row, place], logits.softmax(-1))
    assert (laws is None) == greedy


def test_the_confidence_of_a_place_reads_the_token_in_front_of_it() -> None:
    head = markov_head(9, 9)
    weight = torch.randn(1, 4 + 3)
    confidence = DSparkConfidenceHead(weight, None, 4, 3)
    places, anchors = torch.randn(2, 2, 4), torch.tensor([4, 1])
    drafts = torch.tensor([[2, 7], [3, 3]])
    found = confidences(places, anchors, drafts, head, confidence)
    for row, (first, second) in enumerate(((4, 2), (1, 3))):
        for place, before in enumerate((first, second)):
            read = torch.cat([places[row, place], head.markov_w1[before]])
            torch.testing.assert_close(found[row, place], (weight[0] @ read).sigmoid())


def test_no_requests() -> None:
    head = markov_head(9, 9)
    tokens, _ = markov_drafts(
        torch.empty(0, 3, 9), torch.empty(0, dtype=torch.int64), head, Choose(True)
    )
    assert tokens.shape == (0, 3)
