"""Top-k and top-p against sorting pairs in Python."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.sampling import top_k_top_p
from ascend_ops_core.registry import find


def kept_places(row: list[float], k: int, p: float) -> set[int]:
    """Places that stay, with exact sums of the probabilities."""
    order = sorted(range(len(row)), key=lambda i: (row[i], i))
    if 0 < k < len(row):
        smallest = row[order[-k]]
        order = [i for i in order if row[i] >= smallest]
    if p >= 1 or not order:
        return set(order)
    weights = [Fraction(math.exp(row[i] - row[order[-1]])) for i in order]
    total, mass, kept = sum(weights), Fraction(0), set()
    for i, weight in zip(order, weights, strict=True):
        mass += weight
        if mass > (1 - Fraction(p)) * total:
            kept.add(i)
    return kept | {order[-1]}


def assert_filtered(
    logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None
) -> torch.Tensor:
    got = top_k_top_p(logits, k, p)
    assert got.dtype == logits.dtype
    assert got.is_contiguous()
    for b, row in enumerate(logits.float().tolist()):
        kept = kept_places(
            row, 0 if k is None else int(k[b]), 1.0 if p is None else float(p[b].float())
        )
        expected = [x if i in kept else float("-inf") for i, x in enumerate(row)]
        assert got[b].float().tolist() == expected, f"row {b}"
    return got


@pytest.mark.oracle("ascend_ops_core::top_k_top_p", "sorted pairs and exact fractions in Python")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocabulary", [1, 3, 63, 65, 1000])
def test_equals_sorting(vocabulary: int, dtype: torch.dtype) -> None:
    torch.manual_seed(vocabulary)
    logits = (4 * torch.randn(6, vocabulary)).to(dtype)
    k = torch.tensor([1, 2, vocabulary, 0, 7, 50])
    p = torch.tensor([0.3, 0.9, 0.55, 0.1, 1.0, 0.97])
    assert_filtered(logits, k, None)
    assert_filtered(logits, None, p)
    assert_filtered(logits, k.int(), p)


def test_k_beyond_the_vocabulary_and_0_are_no_top_k() -> None:
    logits = torch.randn(4, 32)
    k = torch.tensor([100_000, 0, -1, 32])
    assert torch.equal(top_k_top_p(logits, k, None), logits)
    assert (top_k_top_p(logits, torch.ones(4, dtype=torch.int64), None) > -torch.inf).sum() == 4


def test_equal_logits() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0]])
    got = top_k_top_p(logits, torch.tensor([2]), None)
    assert (got > -torch.inf).tolist() == [[False, True, True, True, False]]
    # Half of three equal ones is two, those with the largest indices.
    got = top_k_top_p(logits, torch.tensor([3]), torch.tensor([0.5]))
    assert (got > -torch.inf).tolist() == [[False, False, True, True, False]]


def test_p_at_its_ends() -> None:
    logits = torch.randn(3, 50)
    p = torch.tensor([1.0, 1.5, 0.0])
    got = top_k_top_p(logits, None, p)
    assert torch.equal(got[:2], logits[:2])
    assert int((got[2] > -torch.inf).sum()) == 1
    assert got[2].argmax() == logits[2].argmax()


def test_forbidden_logits_stay_forbidden() -> None:
    logits = torch.full((3, 20), float("-inf"))
    logits[0, 4], logits[0, 9] = 1.0, 2.0
    logits[1, 7] = -3.0
    got = top_k_top_p(logits, torch.tensor([5, 5, 5]), torch.tensor([0.99, 0.5, 0.5]))
    assert torch.equal(got, logits)


def test_the_input_is_left_alone() -> None:
    logits = torch.randn(3, 20)
    before = logits.clone()
    top_k_top_p(logits, torch.tensor([1, 1, 1]), torch.tensor([0.1, 0.1, 0.1]))
    assert torch.equal(logits, before)
    assert top_k_top_p(logits, None, None).data_ptr() != logits.data_ptr()


def test_no_rows() -> None:
    empty = torch.tensor([], dtype=torch.int32)
    assert top_k_top_p(torch.randn(0, 9), empty, empty.float()).shape == (0, 9)


def test_refuses() -> None:
    logits = torch.randn(2, 5)
    bad = [
        ("logits of torch.int64", (logits.long(), None, None)),
        ("logits of shape", (logits[0], None, None)),
        ("k of shape", (logits, torch.tensor([1]), None)),
        ("k of torch.float32", (logits, torch.ones(2), None)),
        ("p of shape", (logits, None, torch.ones(2, 1))),
        ("p of torch.int64", (logits, None, torch.tensor([1, 1]))),
    ]
    for message, arguments in bad:
        with pytest.raises(InvalidInputError, match=message):
            top_k_top_p(*arguments)


def test_kernel_counts_to_a_limit() -> None:
    operator = find("ascend_ops_core::top_k_top_p")
    logits = torch.empty(1, (1 << 24) + 1, device="meta")
    assert "16777216" in operator.supports("triton", facts_of("A2"), logits, None, None).reason
