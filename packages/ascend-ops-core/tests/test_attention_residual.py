"""Attention residuals against lists of sources mixed one value at a time."""

from __future__ import annotations

import math

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.layers.attention_residual import AttentionResidual
from ascend_ops_core.ops.attention_residual import add_attn_res, attn_res, reference
from ascend_ops_core.testing import assert_close

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPS = 1e-5


def by_lists(
    sources: list[list[float]], weight: list[float], proj: list[float], eps: float
) -> list[float]:
    """One token: sources of floats, the last being the running sum."""
    scores = []
    for source in sources:
        rms = math.sqrt(sum(v * v for v in source) / len(source) + eps)
        scores.append(sum(w * p * v / rms for w, p, v in zip(weight, proj, source, strict=True)))
    top = max(scores)
    shares = [math.exp(score - top) for score in scores]
    return [
        sum(share * source[d] for share, source in zip(shares, sources, strict=True)) / sum(shares)
        for d in range(len(weight))
    ]


def inputs(
    n: int, tokens: int, hidden: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    return (
        (2 * torch.randn(tokens, hidden)).to(dtype),
        (3 * torch.randn(n, tokens, hidden)).to(dtype),
        (1 + 0.3 * torch.randn(hidden)).to(dtype),
        torch.randn(hidden).to(dtype),
    )


@pytest.mark.oracle("ascend_ops_core::attn_res", "loops over lists of sources")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [0, 1, 4])
def test_equals_lists_of_sources(n: int, dtype: torch.dtype) -> None:
    prefix, blocks, weight, proj = inputs(n, 3, 11, dtype)
    got = attn_res(prefix, blocks, weight, proj, EPS)
    assert got.dtype == dtype
    expected = [
        by_lists(
            [*blocks[:, t].double().tolist(), prefix[t].double().tolist()],
            weight.double().tolist(),
            proj.double().tolist(),
            EPS,
        )
        for t in range(3)
    ]
    assert_close(got, torch.tensor(expected), scale=3)


@pytest.mark.oracle("ascend_ops_core::add_attn_res", "addition, then loops over lists of sources")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_sum_is_rounded_and_then_mixed(dtype: torch.dtype) -> None:
    prefix, blocks, weight, proj = inputs(2, 5, 11, dtype)
    update = torch.randn(5, 11).to(dtype)
    mixed, total = add_attn_res(prefix, update, blocks, weight, proj, EPS)
    assert torch.equal(total, prefix + update)
    assert torch.equal(mixed, attn_res(total, blocks, weight, proj, EPS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 3, 700])
def test_kernels_equal_the_definition(tokens: int, dtype: torch.dtype) -> None:
    given = inputs(3, tokens, 13, dtype)
    got = attn_res(*given, EPS)
    assert got.dtype == dtype
    assert_close(got, reference.attn_res(*given, EPS), scale=3)


def test_kernels_run_without_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "attn_res", None)
    monkeypatch.setattr(reference, "add_attn_res", None)
    prefix, blocks, weight, proj = inputs(2, 3, 8)
    assert add_attn_res(prefix, prefix, blocks, weight, proj, EPS)[0].isfinite().all()


def test_without_blocks_nothing_changes() -> None:
    prefix, blocks, weight, proj = inputs(0, 4, 9, torch.bfloat16)
    assert torch.equal(attn_res(prefix, blocks, weight, proj, EPS), prefix)


def test_the_norm_shapes_shares_and_not_values() -> None:
    # Equal directions earn equal shares, whatever their lengths.
    base = torch.randn(1, 8)
    mixed = attn_res(4 * base, torch.stack([base, 7 * base]), torch.ones(8), torch.randn(8), 0.0)
    assert_close(mixed, 4 * base, scale=4)


def test_a_source_of_zeros_has_a_share() -> None:
    mixed = attn_res(torch.zeros(1, 4), torch.ones(1, 1, 4), torch.ones(4), torch.zeros(4), EPS)
    assert_close(mixed, torch.full((1, 4), 0.5))


@pytest.mark.parametrize("tokens", [3, 600])
def test_nan_stays_in_its_token(tokens: int) -> None:
    prefix, blocks, weight, proj = inputs(2, tokens, 16)
    blocks[0, 1, 5] = float("nan")
    got = attn_res(prefix, blocks, weight, proj, EPS)
    assert got[1].isnan().all()
    assert got[[t for t in range(tokens) if t != 1]].isfinite().all()


def test_tensors_that_do_not_belong_together_are_refused() -> None:
    prefix, blocks, weight, proj = inputs(2, 3, 8)
    for wrong in (
        (prefix[0], blocks, weight, proj),
        (prefix, blocks[:, :2], weight, proj),
        (prefix, blocks.half(), weight, proj),
        (prefix, blocks, weight[1:], proj),
        (prefix, blocks, weight, proj[None]),
        (prefix.double(), blocks.double(), weight, proj),
    ):
        with pytest.raises(InvalidInputError):
            attn_res(*wrong, EPS)
    with pytest.raises(InvalidInputError, match="update"):
        add_attn_res(prefix, prefix[:2], blocks, weight, proj, EPS)


def test_layer_holds_the_parameters_and_calls_the_operators() -> None:
    prefix, blocks, weight, proj = inputs(2, 3, 8)
    layer = AttentionResidual(8, EPS, torch.bfloat16)
    assert {name: p.dtype for name, p in layer.named_parameters()} == {
        "norm": torch.bfloat16,
        "proj": torch.bfloat16,
    }
    layer.norm.data.copy_(weight)
    layer.proj.data.copy_(proj)
    weight, proj = layer.norm.data, layer.proj.data
    assert torch.equal(layer(prefix, blocks), attn_res(prefix, blocks, weight, proj, EPS))
    for got, expected in zip(
        layer.add(prefix, prefix, blocks),
        add_attn_res(prefix, prefix, blocks, weight, proj, EPS),
        strict=True,
    ):
        assert torch.equal(got, expected)
