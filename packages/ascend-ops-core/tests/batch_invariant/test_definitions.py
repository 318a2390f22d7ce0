"""The batch-invariant operators: the same bits in every batch, right values, refusals."""

from __future__ import annotations

import itertools

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.ops.batch_invariant import (
    addmm_batch_invariant,
    bmm_batch_invariant,
    linear_batch_invariant,
    matmul_batch_invariant,
    mean_batch_invariant,
    mm_batch_invariant,
    rms_norm_batch_invariant,
    softmax_batch_invariant,
)
from ascend_ops_core.testing import assert_close

NAMESPACE = "ascend_ops_core"


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view({2: torch.int16, 4: torch.int32}[x.element_size()])


def test_a_row_has_the_same_bits_in_every_batch(rows_and_call, assert_rows_invariant) -> None:
    rows, call = rows_and_call("reference")
    assert_rows_invariant(call, rows)


def test_threads_do_not_change_bits() -> None:
    x, y = torch.randn(70, 130), torch.randn(130, 90)
    torch.set_num_threads(1)
    one = [mm_batch_invariant(x, y), softmax_batch_invariant(x, -1), mean_batch_invariant(x, 0)]
    torch.set_num_threads(2)
    two = [mm_batch_invariant(x, y), softmax_batch_invariant(x, -1), mean_batch_invariant(x, 0)]
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(one, two, strict=True))


def test_layouts_do_not_change_bits() -> None:
    x, y = torch.randn(9, 70), torch.randn(70, 33)
    for other in (x.T.contiguous().T, torch.randn(9, 140)[:, ::2].copy_(x)):
        assert torch.equal(bits(mm_batch_invariant(other, y)), bits(mm_batch_invariant(x, y)))
        assert torch.equal(
            bits(softmax_batch_invariant(other, -1)), bits(softmax_batch_invariant(x, -1))
        )
    assert torch.equal(
        bits(mm_batch_invariant(x, y.T.contiguous().T)), bits(mm_batch_invariant(x, y))
    )


@pytest.mark.oracle(f"{NAMESPACE}::mm_batch_invariant", "outer products in float64")
@pytest.mark.oracle(f"{NAMESPACE}::addmm_batch_invariant", "outer products in float64")
@pytest.mark.oracle(f"{NAMESPACE}::linear_batch_invariant", "outer products in float64")
@pytest.mark.oracle(f"{NAMESPACE}::bmm_batch_invariant", "outer products in float64")
@pytest.mark.parametrize("rows", [0, 1, 3, 17, 65])
@pytest.mark.parametrize(("inner", "columns"), [(1, 1), (63, 65), (130, 40)])
def test_products(rows: int, inner: int, columns: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    x, y = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
    bias = torch.randn(columns).to(dtype)
    expected = (x.double()[:, :, None] * y.double()[None]).sum(1)
    assert_close(mm_batch_invariant(x, y), expected, scale=8)
    assert_close(linear_batch_invariant(x, y.T, bias), expected + bias.double(), scale=8)
    added = torch.randn(rows, columns).to(dtype)
    got = addmm_batch_invariant(added, x, y, beta=0.5, alpha=2.0)
    assert_close(got, 0.5 * added.double() + 2 * expected, scale=16)
    stacked = bmm_batch_invariant(x.expand(3, -1, -1), y.expand(3, -1, -1))
    assert_close(stacked, expected.expand(3, -1, -1), scale=8)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((5,), (5,)),
        ((5,), (5, 3)),
        ((2, 5), (5,)),
        ((2, 3, 5), (5, 4)),
        ((2, 1, 3, 5), (7, 5, 4)),
        ((4, 5), (2, 5, 3)),
        ((5,), (2, 5, 3)),
    ],
)
def test_matmul_broadcasts_as_torch_does(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = torch.randn(left), torch.randn(right)
    expected = torch.matmul(x.double(), y.double())
    got = matmul_batch_invariant(x, y)
    assert got.shape == expected.shape
    assert_close(got, expected)


@pytest.mark.oracle(f"{NAMESPACE}::mean_batch_invariant", "torch.mean in float64")
@pytest.mark.oracle(f"{NAMESPACE}::softmax_batch_invariant", "torch.softmax in float64")
@pytest.mark.parametrize("shape", [(3, 1), (65, 63), (2, 1000), (3, 5, 7), (0, 4)])
def test_reductions(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (3 * torch.randn(shape)).to(dtype)
    for dim in range(-1, len(shape) - 1):
        if shape[dim] == 0:
            continue
        assert_close(mean_batch_invariant(x, dim), x.double().mean(dim))
        kept = mean_batch_invariant(x, dim, keepdim=True)
        assert kept.shape == x.mean(dim, keepdim=True).shape
        assert_close(softmax_batch_invariant(x, dim), x.double().softmax(dim))


@pytest.mark.oracle(f"{NAMESPACE}::rms_norm_batch_invariant", "transformers, DeepseekV4RMSNorm")
def test_rms_norm_equals_transformers() -> None:
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4RMSNorm

    module = DeepseekV4RMSNorm(33, eps=1e-5)
    module.weight.data.normal_()
    x = torch.randn(5, 7, 33)
    assert_close(rms_norm_batch_invariant(x, module.weight.data, 1e-5), module(x).detach())


def test_softmax_keeps_masked_entries_at_zero() -> None:
    x = torch.tensor([[0.0, float("-inf"), 1.0], [float("-inf")] * 3])
    got = softmax_batch_invariant(x, -1)
    assert got[0, 1] == 0
    assert_close(got[0], x[0].double().softmax(0))
    assert got[1].isnan().all()


@pytest.mark.parametrize(
    ("call", "limit"),
    [
        (lambda t: mm_batch_invariant(t(2, 3), t(4, 5)), "axes that fit"),
        (lambda t: mm_batch_invariant(t(1, 2, 3), t(3, 5)), "2 axes"),
        (lambda t: mm_batch_invariant(t(2, 3), t(3, 5).half()), "and equal"),
        (lambda t: mm_batch_invariant(t(2, 3).int(), t(3, 5).int()), "float32, bfloat16"),
        (lambda t: bmm_batch_invariant(t(2, 2, 3), t(3, 3, 5)), "3 axes"),
        (lambda t: addmm_batch_invariant(t(4), t(2, 3), t(3, 5)), r"\(5,\)"),
        (lambda t: linear_batch_invariant(t(2, 3), t(5, 4)), "axes that fit"),
        (lambda t: linear_batch_invariant(t(2, 3), t(5, 3), t(4)), r"\(5,\)"),
        (lambda t: matmul_batch_invariant(t(), t(3)), "at least one axis"),
        (lambda t: mean_batch_invariant(t(2, 3), 2), "2 axes"),
        (lambda t: mean_batch_invariant(t(2, 0), 1), "at least 1"),
        (lambda t: mean_batch_invariant(t(2, 3).int(), 1), "float32"),
        (lambda t: softmax_batch_invariant(t(2, 3), -3), "2 axes"),
        (lambda t: rms_norm_batch_invariant(t(2, 3), t(4), 1e-6), r"\(3,\)"),
    ],
    ids=itertools.count(),
)
def test_refusals_name_the_limit(call, limit: str) -> None:
    with pytest.raises(InvalidInputError, match=limit):
        call(lambda *shape: torch.ones(shape))
