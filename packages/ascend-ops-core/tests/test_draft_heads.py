"""Heads that block drafters share."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.layers.draft_heads import DSparkConfidenceHead, DSparkMarkovHead


def test_the_markov_head_corrects_by_the_token_in_front() -> None:
    torch.manual_seed(0)
    head = DSparkMarkovHead(7, 5, 3, torch.float32, scale=2.0)
    for parameter in head.parameters():
        parameter.data.normal_()
    base, tokens = torch.randn(4, 5), torch.tensor([6, 0, 3, 3])
    rows = head.markov_w1[tokens]
    torch.testing.assert_close(
        head(base, tokens), base + 2 * torch.einsum("rk,dk->rd", rows, head.markov_w2)
    )
    assert torch.equal(head.embed(tokens), rows)


@pytest.mark.parametrize("with_markov", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_the_shape_of_its_weight_says_what_the_confidence_head_reads(
    with_markov: bool, biased: bool
) -> None:
    torch.manual_seed(1)
    weight = torch.randn(1, 6 if with_markov else 4)
    bias = torch.randn(1) if biased else None
    head = DSparkConfidenceHead(weight, bias, 4, 2)
    hidden, markov = torch.randn(3, 4), torch.randn(3, 2)
    read = torch.cat([hidden, markov], 1) if with_markov else hidden
    expected = (read @ weight.T).squeeze(1) + (0 if bias is None else bias)
    torch.testing.assert_close(head(hidden, markov), expected.sigmoid())


def test_another_shape_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"weight of shape \[1, 5\]"):
        DSparkConfidenceHead(torch.zeros(1, 5), None, 4, 2)
    with pytest.raises(InvalidInputError, match=r"bias of shape \[2\]"):
        DSparkConfidenceHead(torch.zeros(1, 4), torch.zeros(2), 4, 2)
