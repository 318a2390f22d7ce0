"""Token counts and penalties against counting by hand."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.sampling import apply_penalties, token_bin_counts_and_mask
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close


def counted(tokens: torch.Tensor, vocabulary: int) -> list[list[int]]:
    return [[row.count(token) for token in range(vocabulary)] for row in tokens.tolist()]


@pytest.mark.oracle("ascend_ops_core::token_bin_counts_and_mask", "counting in Python lists")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("rows", "length"), [(0, 4), (1, 0), (1, 1), (3, 63), (17, 65)])
def test_counts_equal_counting(rows: int, length: int, dtype: torch.dtype) -> None:
    torch.manual_seed(length)
    tokens = torch.randint(-2, 40, (rows, length)).to(dtype)  # -1, -2 and 37 to 39 are padding
    counts, mask = token_bin_counts_and_mask(tokens, 37)
    assert counts.dtype == torch.int32
    assert counts.tolist() == counted(tokens, 37)
    assert torch.equal(mask, counts > 0)


def test_every_token_counts_once() -> None:
    tokens = torch.randint(0, 50, (4, 333))
    counts, _ = token_bin_counts_and_mask(tokens, 50)
    assert counts.sum(dim=1).tolist() == [333] * 4


def penalised(x: float, prompt: bool, count: int, r: float, f: float, p: float) -> float:
    if prompt or count:
        x = x / r if x > 0 else x * r
    return x - f * count - (p if count else 0.0)


@pytest.mark.oracle("ascend_ops_core::apply_penalties", "the OpenAI API's formula, per element")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "vocabulary"), [(0, 5), (1, 1), (3, 63), (4, 65)])
def test_penalties_equal_the_formula(rows: int, vocabulary: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    logits = (4 * torch.randn(rows, vocabulary)).to(dtype)
    mask = torch.rand(rows, vocabulary) < 0.3
    counts = torch.randint(-3, 4, (rows, vocabulary), dtype=torch.int32).clamp(min=0)
    penalties = torch.rand(rows) + 0.5, torch.randn(rows), torch.randn(rows)
    expected = torch.tensor(
        [
            [
                penalised(x, *seen, *(one[b].item() for one in penalties))
                for x, *seen in zip(
                    logits[b].tolist(), mask[b].tolist(), counts[b].tolist(), strict=True
                )
            ]
            for b in range(rows)
        ]
    ).view(rows, vocabulary)
    apply_penalties(logits, mask, counts, *penalties)
    assert_close(logits, expected, scale=4.0)


def test_neutral_penalties_change_no_bit_and_minus_inf_stays() -> None:
    logits = torch.randn(2, 30)
    logits[:, 3] = float("-inf")
    before = logits.clone()
    seen = torch.ones(2, 30, dtype=torch.bool), torch.ones(2, 30, dtype=torch.int32)
    apply_penalties(logits, *seen, torch.ones(2), torch.zeros(2), torch.zeros(2))
    assert torch.equal(logits, before)
    apply_penalties(logits, *seen, torch.full((2,), 1.3), torch.ones(2), torch.ones(2))
    assert torch.isinf(logits[:, 3]).all()


def test_counts_refuse() -> None:
    with pytest.raises(InvalidInputError, match="its shape is"):
        token_bin_counts_and_mask(torch.zeros(3, dtype=torch.int64), 5)
    with pytest.raises(InvalidInputError, match="int32, int64"):
        token_bin_counts_and_mask(torch.zeros(3, 2), 5)
    with pytest.raises(InvalidInputError, match="at least 1"):
        token_bin_counts_and_mask(torch.zeros(3, 2, dtype=torch.int64), 0)


def test_penalties_refuse_before_they_write() -> None:
    logits, mask = torch.ones(2, 4), torch.ones(2, 4, dtype=torch.bool)
    counts, one = torch.ones(2, 4, dtype=torch.int32), torch.ones(2)
    bad: list[tuple[str, tuple[torch.Tensor, ...]]] = [
        ("logits of torch.int32", (logits.int(), mask, counts, one, one, one)),
        ("logits of shape", (logits[0], mask, counts, one, one, one)),
        ("prompt_mask of shape", (logits, mask[:1], counts, one, one, one)),
        ("prompt_mask of torch.int32", (logits, counts, counts, one, one, one)),
        ("output_counts of torch.int64", (logits, mask, counts.long(), one, one, one)),
        ("repetition of shape", (logits, mask, counts, torch.ones(3), one, one)),
        ("presence of torch.float64", (logits, mask, counts, one, one, one.double())),
    ]
    for message, arguments in bad:
        with pytest.raises(InvalidInputError, match=message):
            apply_penalties(*arguments)
    assert torch.equal(logits, torch.ones(2, 4))


def test_kernel_refuses_rows_with_gaps() -> None:
    args = (torch.ones(4, 2).T, *(torch.ones(2, 4) for _ in range(2)), *[torch.ones(2)] * 3)
    support = find("ascend_ops_core::apply_penalties").supports("triton", facts_of("A2"), *args)
    assert "stride 2" in support.reason
