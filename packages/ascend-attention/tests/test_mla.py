"""Prologue and epilogue against brute force in float64, and the kernels' limits."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.ops import mla
from ascend_attention.ops.mla import mla_epilogue, mla_prologue, reference
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOKENS = [0, 1, 2, 3, 5, 16, 17]
EPS = 1e-6
Case = dict[str, torch.Tensor]


def angles(tokens: int, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.rand(tokens, pairs) * 6
    return angle.cos(), angle.sin()


def normed(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Last channels of ``x [T, ..., D]`` as complex numbers times ``exp(i angle)``."""
    first = x.shape[-1] - 2 * cos.shape[-1]
    turn = torch.complex(cos.double(), sin.double())
    turn = turn.view(cos.shape[0], *(1,) * (x.dim() - 2), cos.shape[1])
    tail = (
        torch.view_as_complex(x[..., first:].unflatten(-1, (cos.shape[1], 2)).contiguous()) * turn
    )
    return torch.cat((x[..., :first], torch.view_as_real(tail).flatten(-2)), dim=-1)


@pytest.mark.oracle("ascend_attention::mla_prologue", "brute force in float64")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("heads", "width", "rank", "pairs"), [(3, 12, 21, 3), (1, 34, 7, 17)])
def test_prologue_equals_brute_force(
    heads: int, width: int, rank: int, pairs: int, tokens: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(tokens)
    hidden = torch.randn(tokens, 19).to(dtype)
    down = (torch.randn(rank + width, 19) / 19**0.5).to(dtype)
    up = (torch.randn(heads * width, rank) / rank**0.5).to(dtype)
    q_norm, kv_norm = torch.rand(rank), torch.rand(width)
    cos, sin = angles(tokens, pairs)
    got = mla_prologue(hidden, down, up, q_norm, kv_norm, EPS, cos, sin)
    both = hidden.double() @ down.double().T
    latent = normed(both[:, :rank]) * q_norm
    query = normed((latent @ up.double().T).view(tokens, heads, width))
    assert_close(got.latent, latent, scale=2)
    assert_close(got.query, rotated(query, cos, sin), scale=4)
    assert_close(got.kv, rotated(normed(both[:, rank:]) * kv_norm, cos, sin), scale=2)
    assert {x.dtype for x in got} == {dtype}


@pytest.mark.oracle("ascend_attention::mla_epilogue", "brute force in float64")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("heads", "groups", "rank"), [(6, 3, 5), (4, 1, 33), (2, 2, 16)])
def test_epilogue_equals_brute_force(
    heads: int, groups: int, rank: int, tokens: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(tokens)
    attended = torch.randn(tokens, heads, 10).to(dtype)
    inner = heads // groups * 10
    wo_a = (torch.randn(groups, rank, inner) / inner**0.5).to(dtype)
    wo_b = (torch.randn(23, groups * rank) / (groups * rank) ** 0.5).to(dtype)
    cos, sin = angles(tokens, 4)
    got = mla_epilogue(attended, wo_a, wo_b, cos, sin)
    plain = rotated(attended.double(), cos, -sin).reshape(tokens, groups, inner)
    latent = torch.einsum("tgk,gnk->tgn", plain, wo_a.double()).flatten(1)
    assert got.dtype == dtype
    assert_close(got, latent @ wo_b.double().T, scale=2)


def test_few_tokens_run_without_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(reference, "mla_prologue", None)
    monkeypatch.setattr(reference, "mla_epilogue", None)
    cos, sin = angles(16, 2)
    weights = torch.randn(9, 8), torch.randn(12, 5), torch.ones(5), torch.ones(4)
    got = mla_prologue(torch.randn(16, 8), *weights, EPS, cos, sin)
    out = mla_epilogue(got.query, torch.randn(1, 3, 12), torch.randn(8, 3), cos, sin)
    assert out.isfinite().all()


def test_nan_stays_in_its_token() -> None:
    cos, sin = angles(3, 2)
    hidden = torch.randn(3, 8)
    hidden[1] = float("nan")
    weights = torch.randn(9, 8), torch.randn(12, 5), torch.ones(5), torch.ones(4)
    got = mla_prologue(hidden, *weights, EPS, cos, sin)
    out = mla_epilogue(got.query, torch.randn(1, 3, 12), torch.randn(8, 3), cos, sin)
    for part in (*got, out):
        assert part[[0, 2]].isfinite().all()
        assert part[1].isnan().all()


def test_gradients_use_the_definition() -> None:
    cos, sin = angles(2, 2)
    up = torch.randn(12, 5, requires_grad=True)
    weights = torch.randn(9, 8), up, torch.ones(5), torch.ones(4)
    got = mla_prologue(torch.randn(2, 8), *weights, EPS, cos, sin)
    got.query.square().sum().backward()
    assert up.grad is not None


def test_strided_tokens_are_read_right() -> None:
    cos, sin = angles(3, 2)
    hidden = torch.randn(8, 3).T
    weights = torch.randn(9, 8), torch.randn(12, 5), torch.ones(5), torch.ones(4)
    got = mla_prologue(hidden, *weights, EPS, cos, sin)
    expected = mla_prologue(hidden.contiguous(), *weights, EPS, cos, sin)
    assert_close(got.query, expected.query)
    kernels = mla._cpu.load()
    assert kernels is None or not kernels.supports(hidden, (hidden,), ())


def test_shapes_that_do_not_fit_are_refused() -> None:
    cos, sin = angles(3, 2)
    hidden, q_norm, kv_norm = torch.randn(3, 8), torch.ones(5), torch.ones(4)
    down, up = torch.randn(9, 8), torch.randn(12, 5)
    for wrong in (
        (hidden, down[:8], up, q_norm, kv_norm, EPS, cos, sin),
        (hidden, down, up[:, :4], q_norm, kv_norm, EPS, cos, sin),
        (hidden, down, up[:11], q_norm, kv_norm, EPS, cos, sin),
        (hidden, down, up, q_norm, kv_norm, EPS, cos[:2], sin[:2]),
        (hidden, down, up, q_norm, kv_norm, EPS, cos, sin[:, :1]),
        (hidden, down, up, q_norm, kv_norm, EPS, *angles(3, 3)),
    ):
        with pytest.raises(InvalidInputError):
            mla_prologue(*wrong)
    attended, wo_a, wo_b = torch.randn(3, 4, 4), torch.randn(2, 3, 8), torch.randn(7, 6)
    for wrong_weights in ((wo_a[:, :, :7], wo_b), (wo_a, wo_b[:, :5]), (wo_a[:1], wo_b[:, :3])):
        with pytest.raises(InvalidInputError):
            mla_epilogue(attended, *wrong_weights, cos, sin)
