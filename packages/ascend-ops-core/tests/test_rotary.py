"""Rotary embedding (bug case 9: partial or interleaved rotation done as another kind)."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.ops.rotary import apply_rotary, apply_rotary_qk, reference, rms_norm_rotary
from ascend_ops_core.testing import assert_close

TOKENS = (0, 1, 3, 4, 5, 16, 17, 65)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def angles(tokens: int, rotary_dim: int) -> torch.Tensor:
    return torch.randn(tokens, rotary_dim // 2, generator=torch.Generator().manual_seed(tokens)) * 3


def by_complex_numbers(
    x: torch.Tensor, angle: torch.Tensor, *, interleaved: bool, at_end: bool
) -> torch.Tensor:
    """Multiply every pair, found by its channel numbers, with exp(i * angle)."""
    turns = torch.polar(torch.ones_like(angle).double(), angle.double())
    return by_turns(x, turns, interleaved=interleaved, at_end=at_end)


def by_turns(
    x: torch.Tensor, turns: torch.Tensor, *, interleaved: bool, at_end: bool
) -> torch.Tensor:
    """Multiply every pair with a complex number."""
    out = x.double().clone()
    half = turns.shape[1]
    first = x.shape[-1] - 2 * half if at_end else 0
    for t in range(x.shape[0]):
        for p in range(half):
            a, b = (2 * p, 2 * p + 1) if interleaved else (p, p + half)
            turn = complex(turns[t, p])
            for h in range(x.shape[1]):
                z = complex(x[t, h, first + a], x[t, h, first + b]) * turn
                out[t, h, first + a], out[t, h, first + b] = z.real, z.imag
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "neox"])
@pytest.mark.parametrize(("width", "rotary_dim"), [(7, 4), (8, 8), (12, 2), (5, 0)])
def test_equals_complex_multiplication(
    width: int, rotary_dim: int, interleaved: bool, at_end: bool, dtype: torch.dtype
) -> None:
    x, angle = torch.randn(3, 2, width).to(dtype), angles(3, rotary_dim)
    got = apply_rotary(x, angle.cos(), angle.sin(), interleaved=interleaved, at_end=at_end)
    assert got.dtype == dtype
    assert_close(got, by_complex_numbers(x, angle, interleaved=interleaved, at_end=at_end))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "neox"])
def test_half_of_a_head_of_128_passes_bit_for_bit(
    interleaved: bool, at_end: bool, dtype: torch.dtype
) -> None:
    x, angle = torch.randn(5, 3, 128).to(dtype), angles(5, 64)
    got = apply_rotary(x, angle.cos(), angle.sin(), interleaved=interleaved, at_end=at_end)
    kept, turned = (slice(0, 64), slice(64, 128)) if at_end else (slice(64, 128), slice(0, 64))
    assert torch.equal(got[..., kept], x[..., kept])
    assert not torch.equal(got[..., turned], x[..., turned])


@pytest.mark.oracle("ascend_ops_core::apply_rotary", "complex products with the rounded table")
@pytest.mark.parametrize("table", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("interleaved", "at_end"), [(True, True), (True, False), (False, False)])
def test_a_table_of_16_bits_turns_by_its_rounded_values(
    interleaved: bool, at_end: bool, dtype: torch.dtype, table: torch.dtype
) -> None:
    kind = {"interleaved": interleaved, "at_end": at_end}
    x, angle = torch.randn(5, 2, 12).to(dtype), angles(5, 8)
    cos, sin = angle.cos().to(table), angle.sin().to(table)
    got = apply_rotary(x, cos, sin, **kind)
    assert got.dtype == dtype
    assert_close(got, by_turns(x, torch.complex(cos.double(), sin.double()), **kind))
    assert not torch.equal(got, apply_rotary(x, angle.cos(), angle.sin(), **kind))
    for one in apply_rotary_qk(x, x, cos, sin, **kind):
        assert torch.equal(one, got)


@pytest.mark.parametrize("table", [torch.bfloat16, torch.float16], ids=str)
def test_norm_and_a_table_of_16_bits(table: torch.dtype) -> None:
    x, angle, weight = 2 * torch.randn(17, 2, 23), angles(17, 8), torch.rand(23)
    cos, sin = angle.cos().to(table), angle.sin().to(table)
    normed = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    turns = torch.complex(cos.double(), sin.double())
    expected = by_turns(normed, turns, interleaved=True, at_end=True)
    assert_close(rms_norm_rotary(x, weight, 1e-6, cos, sin), expected)


def test_a_unit_vector_shows_the_pairing() -> None:
    quarter = torch.tensor([[torch.pi / 2, 0.0]])
    x = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])
    for interleaved, partner in ((True, 1), (False, 2)):
        got = apply_rotary(x, quarter.cos(), quarter.sin(), interleaved=interleaved)[0, 0]
        assert got.argmax() == partner


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "neox"])
def test_kernel_equals_definition(
    tokens: int, dtype: torch.dtype, interleaved: bool, at_end: bool, inverse: bool
) -> None:
    kind = {"interleaved": interleaved, "at_end": at_end, "inverse": inverse}
    x, angle = torch.randn(tokens, 3, 37).to(dtype), angles(tokens, 16)
    table = angle.cos(), angle.sin()
    assert_close(apply_rotary(x, *table, **kind), reference.apply_rotary(x, *table, **kind))


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "neox"])
def test_inverse_undoes_the_rotation(interleaved: bool, at_end: bool) -> None:
    x, angle = torch.randn(9, 4, 20), angles(9, 12)
    kind = {"interleaved": interleaved, "at_end": at_end}
    there = apply_rotary(x, angle.cos(), angle.sin(), **kind)
    assert_close(apply_rotary(there, angle.cos(), angle.sin(), inverse=True, **kind), x)
    conjugate = apply_rotary(there, angle.cos(), -angle.sin(), **kind)
    assert_close(apply_rotary(there, angle.cos(), angle.sin(), inverse=True, **kind), conjugate)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [1, 4, 80])
def test_equals_transformers(heads: int, dtype: torch.dtype) -> None:
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import apply_rotary_pos_emb

    x, angle = torch.randn(11, heads, 40).to(dtype), angles(11, 24)
    oracle = apply_rotary_pos_emb(x.transpose(0, 1)[None], angle.cos()[None], angle.sin()[None])[
        0
    ].transpose(0, 1)
    assert_close(apply_rotary(x, angle.cos(), angle.sin(), at_end=True), oracle)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weighted", [True, False])
def test_norm_then_rotation(tokens: int, dtype: torch.dtype, weighted: bool) -> None:
    x, angle = (2 * torch.randn(tokens, 2, 23)).to(dtype), angles(tokens, 8)
    weight = 1 + 0.2 * torch.randn(23) if weighted else None
    got = rms_norm_rotary(x, weight, 1e-6, angle.cos(), angle.sin())
    assert got.dtype == dtype
    normed = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    normed = normed if weight is None else normed * weight.double()
    assert_close(got, by_complex_numbers(normed, angle, interleaved=True, at_end=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_many_heads_run_in_parallel_and_agree(dtype: torch.dtype) -> None:
    x, angle = torch.randn(17, 64, 64).to(dtype), angles(17, 16)
    weight = torch.rand(64)
    got = rms_norm_rotary(x, weight, 1e-6, angle.cos(), angle.sin())
    assert_close(got, reference.rms_norm_rotary(x, weight, 1e-6, angle.cos(), angle.sin()))


def test_strided_heads_use_the_definition_and_agree() -> None:
    x, angle = torch.randn(3, 5, 16).transpose(0, 1), angles(5, 8)
    got = apply_rotary(x, angle.cos(), angle.sin(), at_end=True)
    assert_close(got, by_complex_numbers(x, angle, interleaved=True, at_end=True))
    table = torch.randn(5, 16)
    contiguous = x.contiguous()
    assert_close(
        apply_rotary(contiguous, table[:, ::4], table[:, 1::4], at_end=True),
        apply_rotary(x, table[:, ::4], table[:, 1::4], at_end=True),
    )


def test_kernel_runs_without_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "apply_rotary", None)
    monkeypatch.setattr(reference, "rms_norm_rotary", None)
    angle = angles(2, 8)
    assert (
        apply_rotary(torch.randn(2, 1, 8), angle.cos(), angle.sin(), at_end=True).isfinite().all()
    )
    out = rms_norm_rotary(torch.randn(2, 1, 8), None, 1e-6, angle.cos(), angle.sin())
    assert out.isfinite().all()


def test_nan_stays_in_its_head() -> None:
    x, angle = torch.randn(2, 3, 8), angles(2, 4)
    x[0, 1, 7] = float("nan")
    out = rms_norm_rotary(x, None, 1e-6, angle.cos(), angle.sin())
    assert out[0, 1].isnan().all()
    assert int(out.isnan().sum()) == 8


def test_gradients_use_the_definition() -> None:
    x, angle = torch.randn(3, 2, 8, requires_grad=True), angles(3, 8)
    apply_rotary(x, angle.cos(), angle.sin(), at_end=True).square().sum().backward()
    # A rotation keeps lengths, so the gradient of the squared length is 2 x.
    assert x.grad is not None
    assert_close(x.grad, 2 * x.detach())
    weight = torch.ones(8, requires_grad=True)
    rms_norm_rotary(x.detach(), weight, 1e-6, angle.cos(), angle.sin()).sum().backward()
    assert weight.grad is not None


def test_bad_input_names_value_limit_and_remedy() -> None:
    x, angle = torch.zeros(2, 1, 4), angles(2, 6)
    with pytest.raises(InvalidInputError, match=r"rotary dimension 6.*4 channels.*at most"):
        apply_rotary(x, angle.cos(), angle.sin())
    angle = angles(3, 4)
    with pytest.raises(InvalidInputError, match=r"\(3, 2\).*each of the 2 tokens.*positions"):
        rms_norm_rotary(x, None, 1e-6, angle.cos(), angle.sin())
    angle = angles(2, 4)
    with pytest.raises(InvalidInputError, match=r"\(2, 2\) and sin \(2, 1\)"):
        apply_rotary(x, angle.cos(), angle.sin()[:, :1])
    with pytest.raises(InvalidInputError, match=r"sin of torch.float32.*one of bfloat16.*Convert"):
        apply_rotary(x, angle.cos().bfloat16(), angle.sin(), at_end=True)
    with pytest.raises(
        InvalidInputError, match=r"cos of torch.float64.*float16, bfloat16, float32"
    ):
        rms_norm_rotary(x, None, 1e-6, angle.cos().double(), angle.sin().double())
    with pytest.raises(RuntimeError, match="size of tensor"):
        rms_norm_rotary(x, torch.ones(2), 1e-6, angle.cos(), angle.sin())
