"""N-gram drafting against ten lines of Python."""

from __future__ import annotations

import random

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.ops.ngram import propose_ngrams, reference


def drafts_of(text: list[int], grams: tuple[int, int], most: int, limit: int) -> list[int]:
    """What follows the first place of the longest run of last tokens further in front."""
    for n in range(grams[1], grams[0] - 1, -1):
        for start in range(len(text) - n):
            if text[start : start + n] == text[len(text) - n :]:
                room = max(min(most, limit - len(text)), 0)
                return text[start + n :][:room]
    return []


def batch(texts: list[list[int]], dtype: torch.dtype, slack: int = 0) -> torch.Tensor:
    width = max(map(len, texts), default=0) + slack
    # What lies behind a text must not be found.
    rows = torch.full((len(texts), width), 1, dtype=dtype)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = torch.tensor(text, dtype=dtype)
    return rows


@pytest.mark.oracle("ascend_specdec::propose_ngrams", "a search in lists of Python")
@pytest.mark.parametrize("kernel", ["operator", "definition"])
@pytest.mark.parametrize("grams", [(1, 1), (1, 4), (2, 3), (5, 5), (3, 9)], ids=str)
def test_drafts_equal_a_search(grams: tuple[int, int], kernel: str) -> None:
    chosen = random.Random(sum(grams))
    dtype = torch.int32
    for trial in range(12):
        most = (1, 2, 7)[trial % 3]
        texts = [
            [chosen.randrange(1, 4) for _ in range(chosen.choice((0, 1, 2, 3, 9, 40)))]
            for _ in range(5)
        ]
        limit = 42 - trial % 4
        tokens = batch(texts, dtype, slack=trial % 2)
        lengths = torch.tensor(list(map(len, texts)), dtype=dtype)
        if kernel == "operator":
            drafts, counts = propose_ngrams(
                tokens, lengths, shortest=grams[0], longest=grams[1], most=most, limit=limit
            )
        elif not tokens.numel():
            continue
        else:
            drafts, counts = reference.propose_ngrams(tokens, lengths, *grams, most, limit)
        expected = [drafts_of(text, grams, most, limit) for text in texts]
        assert counts.tolist() == list(map(len, expected))
        assert drafts.tolist() == [one + [-1] * (most - len(one)) for one in expected]


@pytest.mark.parametrize(("length", "count"), [(8, 2), (9, 1), (10, 0), (2, 0), (3, 0)])
def test_no_draft_passes_the_longest_context(length: int, count: int) -> None:
    """Bug case 23: a text of two tokens less than the context gets two drafts; a short one none."""
    tokens = torch.tensor([[1, 2, 3, 1, 2, 3, 1, 2, 3, 1]])
    given = torch.tensor([length])
    drafts, counts = propose_ngrams(tokens, given, shortest=2, longest=3, most=5, limit=10)
    assert counts.tolist() == [count]
    assert (drafts[0] >= 0).sum() == count


def test_a_table_s_rows_are_read_in_place() -> None:
    table = torch.tensor([[5, 6, 5, 0, 9], [7, 8, 7, 0, 9]], dtype=torch.int32)
    lengths = torch.tensor([3, 3])
    drafts, counts = propose_ngrams(table[:, :3], lengths, shortest=1, longest=2, most=2, limit=9)
    assert drafts.tolist() == [[6, 5], [8, 7]]
    assert counts.tolist() == [2, 2]


def test_nothing_to_draft() -> None:
    empty = torch.zeros(0, 4, dtype=torch.int32)
    drafts, counts = propose_ngrams(empty, empty[:, 0], shortest=1, longest=1, most=3, limit=9)
    assert drafts.shape == (0, 3)
    assert counts.shape == (0,)
    text = torch.tensor([[1, 1, 1]])
    drafts, counts = propose_ngrams(text, torch.tensor([3]), shortest=1, longest=1, most=0, limit=9)
    assert drafts.shape == (1, 0)
    assert counts.tolist() == [0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shortest": 0}, "shortest"),
        ({"longest": 1}, "longest"),
        ({"most": 129}, "most=129"),
        ({"limit": -1}, "limit"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(given: dict[str, int], message: str) -> None:
    numbers = {"shortest": 2, "longest": 3, "most": 4, "limit": 9} | given
    with pytest.raises(InvalidInputError, match=message):
        propose_ngrams(torch.zeros(1, 4, dtype=torch.int32), torch.tensor([4]), **numbers)


def test_columns_with_gaps_are_refused() -> None:
    tokens = torch.zeros(2, 8, dtype=torch.int32)[:, ::2]
    with pytest.raises(InvalidInputError, match="strides"):
        propose_ngrams(tokens, torch.tensor([4, 4]), shortest=1, longest=1, most=1, limit=9)
