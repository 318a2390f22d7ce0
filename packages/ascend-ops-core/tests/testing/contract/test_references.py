"""References against definitions written here, by brute force or with other functions of torch."""

from __future__ import annotations

import math

import pytest
import torch
from ascend_ops_core.devices import device_family
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.contract import Contract
from ascend_ops_core.testing.npu_references import REFERENCES
from torch.nn import functional as F

pytestmark = pytest.mark.contract

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def _on_cpu(contract: Contract) -> None:
    """Calls of torch.ops.npu on CPU tensors run the references."""


def _close(actual: torch.Tensor, expected: torch.Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-5, atol=atol)


def test_every_reference_has_an_operator(contract: Contract) -> None:
    assert REFERENCES.keys() <= contract.schemas.keys()
    undocumented = [one for one in REFERENCES.values() if not one.documented]
    assert all(one.function.__doc__ for one in REFERENCES.values())
    assert any(one.assumed for one in undocumented)


def test_norms() -> None:
    x, other = torch.randn(5, 64), torch.randn(5, 64)
    gamma, beta = torch.randn(64), torch.randn(64)
    rms = F.rms_norm(x, (64,), gamma, 1e-5)
    y, rstd = torch.ops.npu.npu_rms_norm(x, gamma, 1e-5)
    _close(y, rms)
    _close(rstd, (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt())
    _close(torch.ops.npu.npu_gemma_rms_norm(x, gamma)[0], F.rms_norm(x, (64,), 1 + gamma, 1e-6))
    y, _, total = torch.ops.npu.npu_add_rms_norm(x, other, gamma)
    _close(total, x + other)
    _close(y, F.rms_norm(x + other, (64,), gamma, 1e-6))
    _close(
        torch.ops.npu.npu_layer_norm_eval(x, [64], gamma, beta),
        F.layer_norm(x, (64,), gamma, beta),
    )
    y, mean, rstd, total = torch.ops.npu.npu_add_layer_norm(x, other, gamma, beta, 1e-5, True)
    _close(y, F.layer_norm(x + other, (64,), gamma, beta))
    _close(mean, total.mean(-1, keepdim=True))
    _close(rstd, (total.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt())


def test_activations() -> None:
    x = torch.randn(3, 32)
    a, b = x[:, :16], x[:, 16:]
    _close(torch.ops.npu.npu_swiglu(x), a * torch.sigmoid(a) * b)
    _close(torch.ops.npu.npu_fast_gelu(x), x / (1 + torch.exp(-1.702 * x)))
    _close(torch.ops.npu.npu_gelu(x, approximate="tanh"), F.gelu(x, approximate="tanh"))
    _close(torch.ops.npu.npu_geglu(x, -1, 0)[0], F.gelu(b) * a)
    even, odd = (10 * x)[:, ::2].clamp(max=7), (10 * x)[:, 1::2].clamp(-7, 7)
    _close(
        torch.ops.npu.npu_clipped_swiglu(10 * x),
        even * torch.sigmoid(1.702 * even) * (odd + 1),
    )
    grouped = torch.ops.npu.npu_clipped_swiglu(10 * x, group_index=torch.tensor([1, 1]))
    assert grouped[2].abs().sum() == 0
    assert grouped[1].abs().sum() > 0


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotation_is_a_complex_product(mode: str) -> None:
    x, angle = torch.randn(1, 6, 2, 8), torch.rand(1, 6, 1, 4)
    pairs = (
        torch.complex(*x.chunk(2, -1))
        if mode == "half"
        else torch.view_as_complex(x.unflatten(-1, (4, 2)))
    )
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    if mode == "half":
        expected = torch.cat((turned.real, turned.imag), -1)
        table = torch.cat((angle, angle), -1)
    else:
        expected = torch.view_as_real(turned).flatten(-2)
        table = angle.repeat_interleave(2, -1)
    _close(torch.ops.npu.npu_rotary_mul(x, table.cos(), table.sin(), mode), expected)
    cache = torch.cat((angle.cos(), angle.sin()), -1).view(6, 8).repeat(1, 2)[:, [0, 1, 2, 3] * 4]
    cache[:, 8:] = angle.sin().view(6, 4).repeat(1, 2)
    cache[:, :8] = angle.cos().view(6, 4).repeat(1, 2)
    wide = torch.randn(6, 32)
    result, _ = torch.ops.npu.npu_mrope(
        torch.arange(6), wide, wide.clone(), cache, 32, rotary_mode=mode
    )
    assert torch.equal(result[:, 16:], wide[:, 16:])
    if mode == "half":
        heads = torch.complex(wide[:, :8], wide[:, 8:16])
        heads = heads * torch.polar(torch.ones(6, 8), angle.view(6, 4).repeat(1, 2))
        _close(result[:, :16], torch.cat((heads.real, heads.imag), -1))


def test_apply_rotary_overwrites_its_arguments() -> None:
    query, key = torch.randn(1, 3, 2, 64), torch.randn(1, 3, 1, 64)
    angle = torch.rand(1, 3, 1, 32).repeat(1, 1, 1, 2)
    expected = torch.ops.npu.npu_rotary_mul(query, angle.cos(), angle.sin())
    before = query.clone()
    result, _ = torch.ops.npu.npu_apply_rotary_pos_emb(query, key, angle.cos(), angle.sin())
    assert torch.equal(result, expected)
    assert torch.equal(query, expected)
    assert not torch.equal(query, before)


def test_dynamic_quantisation() -> None:
    x = torch.randn(4, 64).to(BF16)
    x[2] = 0
    y, scale = torch.ops.npu.npu_dynamic_quant(x)
    for row, quantised, one in zip(x.float(), y, scale, strict=True):
        largest = float(row.abs().max())
        assert math.isclose(one, largest / 127, rel_tol=1e-6)
        wanted = [round(float(v) / (largest / 127)) if largest else 0 for v in row]
        assert all(abs(int(a) - b) <= 1 for a, b in zip(quantised, wanted, strict=True))
    smooth = torch.stack((torch.full((64,), 2.0), torch.full((64,), 4.0))).to(BF16)
    ends = torch.tensor([1, 4], dtype=torch.int32)
    _, smoothed = torch.ops.npu.npu_dynamic_quant(x, smooth_scales=smooth, group_index=ends)
    _close(smoothed, scale * torch.tensor([2.0, 4, 4, 4]))


def test_int4_is_packed_with_the_first_value_lowest() -> None:
    x = torch.tensor([[-7.0, 7, 1, 2, 3, -4, 5, -1]]).to(BF16)
    y, scale = torch.ops.npu.npu_dynamic_quant(x, dst_type=torch.quint4x2)
    assert scale.item() == 1
    word = int(y.item()) & 0xFFFFFFFF
    values = [((word >> (4 * i)) & 0xF) for i in range(8)]
    assert [v - 16 if v > 7 else v for v in values] == x[0].int().tolist()


def test_block_quantisation() -> None:
    x = torch.randn(3, 200).to(BF16)
    y, scale = torch.ops.npu.npu_dynamic_block_quant(x)
    _close(scale[:, 0], x[:, :128].float().abs().amax(1) / 127)
    _close(scale[:, 1], x[:, 128:].float().abs().amax(1) / 127)
    back = y.float() * scale.repeat_interleave(128, 1)[:, :200]
    assert ((back - x.float()).abs() <= scale.repeat_interleave(128, 1)[:, :200] * 0.501).all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_mx_quantisation_is_within_half_a_step(dtype: torch.dtype) -> None:
    x = torch.randn(3, 96).to(BF16) * 100
    with device_family("A5"):
        y, scale = torch.ops.npu.npu_dynamic_mx_quant(x, dst_type=dtype)
    assert scale.shape == (3, 2, 2)
    exponents = scale.view(3, 4)[:, :3].float() - 127
    back = y.float() * torch.exp2(exponents).repeat_interleave(32, 1)
    step = 2.0 ** -(3 if dtype == torch.float8_e4m3fn else 2)
    saturated = y.float().abs() == torch.finfo(dtype).max
    assert (((back - x.float()).abs() <= x.float().abs() * step) | saturated).all()


def test_fp4_rounds_to_the_nearest_and_to_even() -> None:
    grid = [0.0, 0.5, 1, 1.5, 2, 3, 4, 6]
    x = torch.linspace(-6, 6, 32).to(BF16)
    with device_family("A5"):
        y, scale = torch.ops.npu.npu_dynamic_mx_quant(x)
    assert scale.flatten().tolist() == [127, 0]
    codes = torch.stack((y & 0xF, y >> 4), -1).flatten().tolist()
    for value, code in zip(x.float().tolist(), codes, strict=True):
        found = grid[code & 7] * (-1 if code & 8 else 1)
        best = min(abs(abs(value) - g) for g in grid)
        assert math.isclose(abs(found - value), best, abs_tol=1e-6)


def test_quantize() -> None:
    x = torch.tensor([[1.0, 2.5, -3.5, 300]])
    scales, zeros = torch.tensor([1.0]), torch.tensor([1], dtype=torch.int8)
    assert torch.ops.npu.npu_quantize(x, scales, zeros, torch.qint8).tolist() == [[2, 4, -2, 127]]
    halved = torch.ops.npu.npu_quantize(x, torch.tensor([0.5]), None, torch.qint8, -1, False)
    assert halved.tolist() == [[0, 1, -2, 127]]


def test_norms_that_quantise() -> None:
    x, gamma = torch.randn(3, 64).to(BF16), torch.randn(64).to(BF16)
    smooth = torch.rand(64).to(BF16)
    y1, y2, total, s1, s2 = torch.ops.npu.npu_add_rms_norm_dynamic_quant(
        x, x, gamma, smooth_scale1=smooth, smooth_scale2=gamma
    )
    assert torch.equal(total, x + x)
    normed = F.rms_norm(total.float(), (64,), gamma.float(), 1e-6)
    _close(y1 * s1[:, None], normed * smooth.float(), atol=float(s1.max()))
    _close(y2 * s2[:, None], normed * gamma.float(), atol=float(s2.max()))
    static, _, _ = torch.ops.npu.npu_add_rms_norm_quant(x, x, gamma, torch.full((64,), 0.1), None)
    assert ((static - (normed / 0.1).round().clamp(-128, 127)).abs() <= 1).all()


def test_swiglu_that_quantises() -> None:
    x = torch.randint(-1000, 1000, (5, 128), dtype=torch.int32)
    weight, tokens = torch.rand(2, 128) * 1e-2, torch.rand(5)
    y, scale = torch.ops.npu.npu_dequant_swiglu_quant(
        x,
        weight_scale=weight,
        activation_scale=tokens,
        group_index=torch.tensor([2, 1]),
        activate_left=True,
        quant_mode=1,
    )
    for row, group in ((0, 0), (1, 0), (2, 1)):
        wide = x[row] * weight[group] * tokens[row]
        expected = F.silu(wide[:64]) * wide[64:]
        _close(y[row] * scale[row], expected, atol=float(scale[row]) * 0.51)
    assert y[3:].abs().sum() == 0


def test_quant_matmul_is_exact() -> None:
    x1 = torch.randint(-128, 128, (4, 300), dtype=torch.int8)
    x2 = torch.randint(-128, 128, (300, 5), dtype=torch.int8)
    scale, tokens = torch.rand(5), torch.rand(4)
    product = (x1.double() @ x2.double()) * scale.double() * tokens.double()[:, None]
    result = torch.ops.npu.npu_quant_matmul(
        x1, x2, scale, pertoken_scale=tokens, output_dtype=torch.bfloat16
    )
    assert torch.equal(result, product.float().to(BF16))


def test_mx_product_scales_every_block() -> None:
    torch.manual_seed(0)
    x1 = torch.randn(3, 2, 128).to(torch.float8_e4m3fn)
    x2 = torch.randn(2, 5, 128).to(torch.float8_e4m3fn)
    powers = [torch.randint(124, 131, (*x.shape[:-1], 2, 2), dtype=torch.uint8) for x in (x1, x2)]
    options = {"group_sizes": [0, 0, 32], "perm_x1": [1, 0, 2], "perm_y": [1, 0, 2]}
    scales = [one.view(torch.float8_e8m0fnu) for one in powers]
    with device_family("A5"):
        given = options | {"x1_scale": scales[0], "x2_scale": scales[1]}
        y = torch.ops.npu.npu_transpose_quant_batchmatmul(x1, x2, 5, perm_x2=[0, 2, 1], **given)
        with pytest.raises(InvalidInputError, match="perm_x2"):
            torch.ops.npu.npu_transpose_quant_batchmatmul(x1, x2, 5, perm_x2=[0, 1, 2], **given)
    assert y.dtype == torch.float16
    expected = torch.zeros(3, 2, 5, dtype=torch.float64)
    for block in range(4):
        columns = slice(32 * block, 32 * block + 32)
        left, right = (
            one[..., block // 2, block % 2].double().sub(127).exp2().unsqueeze(-1) for one in powers
        )
        parts = (x1[..., columns].double() * left, x2[..., columns].double() * right)
        expected += torch.einsum("mbk,bnk->mbn", *parts)
    assert ((y.double() - expected).abs() <= expected.abs() * 2**-11 + 1e-3).all()


def test_scatters() -> None:
    cache = torch.zeros(2, 3, 4)
    index = torch.tensor([[1, 2], [0, 0]])
    torch.ops.npu.npu_scatter_nd_update_(cache, index, torch.ones(2, 4))
    assert cache.sum(-1).tolist() == [[4, 0, 0], [0, 0, 4]]
    key, value = torch.randn(3, 2, 32), torch.randn(3, 2, 16)
    slots = torch.tensor([5, 0, 31], dtype=torch.int32)
    plain = [torch.zeros(2, 16, 2, 32), torch.zeros(2, 16, 2, 16)]
    torch.ops.npu.npu_scatter_pa_kv_cache(key, value, *plain, slots, cache_mode="Norm")
    fractal = [torch.zeros(2, 4, 16, 16), torch.zeros(2, 2, 16, 16)]
    torch.ops.npu.npu_scatter_pa_kv_cache(key, value, *fractal, slots)
    for rows, one, nz in zip((key, value), plain, fractal, strict=True):
        assert torch.equal(one.flatten(0, 1)[slots.long()], rows)
        assert torch.equal(nz.transpose(1, 2).reshape(one.shape), one)
        assert one.count_nonzero() == rows.numel()


def test_top_k_top_p_by_brute_force() -> None:
    logits = torch.randn(6, 50)
    k = torch.tensor([1, 3, 10, 50, 7, 20], dtype=torch.int32)
    p = torch.tensor([0.9, 0.5, 0.8, 0.95, 0.0, 1.0])
    result = torch.ops.npu.npu_top_k_top_p(logits, p, k)
    for row, found, kth, top in zip(logits, result, k.tolist(), p.tolist(), strict=True):
        order = row.argsort(descending=True)[:kth]
        probabilities = row[order].softmax(0)
        kept, mass = [], 0.0
        for place, probability in zip(order.tolist(), probabilities.tolist(), strict=True):
            if kept and mass >= top:
                break
            kept.append(place)
            mass += probability
        assert set(found.isfinite().nonzero().flatten().tolist()) == set(kept)
        assert torch.equal(found[kept], row[kept])


def test_hyper_connections() -> None:
    x = torch.randn(3, 4, 16).to(BF16)
    # Larger logits would need more iterations of Sinkhorn than the operator does.
    phi, alpha, bias = torch.randn(24, 64) * 0.1, torch.rand(3), torch.randn(24)
    with device_family("A5"):
        h_in, h_post, h_res, *_ = torch.ops.npu.npu_mhc_pre(x, phi, alpha, bias)
        doubly, *_ = torch.ops.npu.npu_mhc_sinkhorn(h_res, num_iters=100)
        spread = torch.ops.npu.npu_mhc_post(x, doubly, h_in, h_post)
    _close(doubly.sum(-1), torch.ones(3, 4), atol=1e-3)
    _close(doubly.sum(-2), torch.ones(3, 4), atol=1e-3)
    for t in range(3):
        flat = F.rms_norm(x[t].flatten().float(), (64,), eps=1e-6)
        mix = phi @ flat
        pre = torch.sigmoid(alpha[0] * mix[:4] + bias[:4]) + 1e-6
        _close(h_in[t], sum(pre[i] * x[t, i].float() for i in range(4)), atol=0.05)
        _close(h_post[t], 2 * torch.sigmoid(alpha[1] * mix[4:8] + bias[4:8]), atol=1e-4)
        for j in range(4):
            kept = sum(doubly[t, i, j] * x[t, i].float() for i in range(4))
            _close(spread[t, j], kept + h_post[t, j] * h_in[t].float(), atol=0.1)


_INT8 = torch.zeros(2, 8, dtype=torch.int8)
_BROKEN = {
    "dtype": lambda: torch.ops.npu.npu_rms_norm(_INT8, _INT8[0]),
    "gamma": lambda: torch.ops.npu.npu_rms_norm(torch.zeros(2, 8), torch.zeros(8).half()),
    "odd": lambda: torch.ops.npu.npu_swiglu(torch.zeros(2, 7)),
    "head": lambda: torch.ops.npu.npu_rotary_mul(*[torch.zeros(1, 2, 1, 896)] * 3),
    "k": lambda: torch.ops.npu.npu_top_k_top_p(
        torch.zeros(1, 4), None, torch.tensor([5], dtype=torch.int32)
    ),
    "rank": lambda: torch.ops.npu.npu_dynamic_quant(torch.zeros(8).half()),
    "float32": lambda: torch.ops.npu.npu_dynamic_quant(torch.zeros(2, 8)),
    "range": lambda: torch.ops.npu.npu_scatter_nd_update_(
        torch.zeros(2, 8), torch.tensor([[2]]), torch.zeros(1, 8)
    ),
    "slot": lambda: torch.ops.npu.npu_scatter_pa_kv_cache(
        *[torch.zeros(1, 1, 16)] * 2,
        *[torch.zeros(1, 16, 1, 16)] * 2,
        torch.tensor([16]),
        cache_mode="Norm",
    ),
    "grouped": lambda: torch.ops.npu.npu_dequant_swiglu_quant(
        torch.zeros(2, 16).to(BF16), group_index=torch.tensor([2]), quant_mode=1
    ),
}


@pytest.mark.parametrize("broken", _BROKEN)
def test_documented_limits_are_refused(broken: str) -> None:
    with pytest.raises(InvalidInputError):
        _BROKEN[broken]()
