"""Query and key together, further scalings, and the limits of the NPU implementations."""

from __future__ import annotations

import math

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.devices import facts_of
from ascend_ops_core.ops.rotary import (
    apply_rotary,
    apply_rotary_qk,
    dynamic_ntk_frequencies,
    linear_frequencies,
    npu,
    rms_norm_rotary,
    rotary_frequencies,
    yarn_attention_factor,
)
from ascend_ops_core.testing import assert_close


def tables(tokens: int, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = 3 * torch.randn(tokens, pairs)
    return angle.cos(), angle.sin()


@pytest.mark.oracle("ascend_ops_core::apply_rotary_qk", "transformers' Llama and GPT-J")
@pytest.mark.oracle("ascend_ops_core::apply_rotary", "transformers' Llama and GPT-J")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_equals_transformers(tokens: int, dtype: torch.dtype) -> None:
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama

    q, k = torch.randn(tokens, 5, 16).to(dtype), torch.randn(tokens, 2, 16).to(dtype)
    cos, sin = tables(tokens, 8)
    got = apply_rotary_qk(q, k, cos, sin)
    heads = [one.float().transpose(0, 1)[None] for one in (q, k)]
    oracle = llama(*heads, cos.repeat(1, 2)[None], sin.repeat(1, 2)[None])
    for one, expected in zip(got, oracle, strict=True):
        assert one.dtype == dtype
        assert_close(one, expected[0].transpose(0, 1))
    for one, heads_of in zip(
        apply_rotary_qk(q, k, cos, sin, interleaved=True), (q, k), strict=True
    ):
        assert_close(one, gptj(heads_of.float()[None], sin[None], cos[None])[0])
        assert torch.equal(one, apply_rotary(heads_of, cos, sin))


@pytest.mark.oracle("ascend_ops_core::rms_norm_rotary", "transformers' DeepSeek-V4")
def test_norm_and_rotation_equal_transformers() -> None:
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
        DeepseekV4UnweightedRMSNorm,
        apply_rotary_pos_emb,
    )

    x, (cos, sin) = torch.randn(7, 3, 40), tables(7, 12)
    normed = DeepseekV4UnweightedRMSNorm(1e-6)(x).transpose(0, 1)[None]
    expected = apply_rotary_pos_emb(normed, cos[None], sin[None])[0].transpose(0, 1)
    assert_close(rms_norm_rotary(x, None, 1e-6, cos, sin), expected)


def test_half_of_a_head_of_128_with_its_key() -> None:
    q, k, table = torch.randn(3, 2, 128), torch.randn(3, 1, 128), tables(3, 32)
    for got, x in zip(apply_rotary_qk(q, k, *table), (q, k), strict=True):
        assert torch.equal(got[..., 64:], x[..., 64:])
        assert not torch.equal(got[..., :64], x[..., :64])


def test_queries_and_keys_that_differ_are_refused() -> None:
    q, table = torch.zeros(2, 3, 8), tables(2, 4)
    for k in (torch.zeros(2, 1, 10), torch.zeros(2, 1, 8).half()):
        with pytest.raises(InvalidInputError, match=r"one head size and one dtype"):
            apply_rotary_qk(q, k, *table)
    with pytest.raises(InvalidInputError, match=r"each of the 3 tokens"):
        apply_rotary_qk(q, torch.zeros(3, 1, 8), *table)


def test_linear_and_dynamic_scaling_equal_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    def of(kind: str, **rest: int) -> torch.Tensor:
        config = LlamaConfig(
            head_dim=32,
            max_position_embeddings=256,
            rope_parameters={"rope_type": kind, "rope_theta": 1e4, "factor": 4.0},
        )
        return ROPE_INIT_FUNCTIONS[kind](config, **rest)[0]

    assert_close(linear_frequencies(32, 1e4, 4.0), of("linear"))
    for length in (100, 256, 300, 1000):
        got = dynamic_ntk_frequencies(32, 1e4, 4.0, 256, length)
        assert_close(got, of("dynamic", seq_len=length))
    assert torch.equal(dynamic_ntk_frequencies(32, 1e4, 4.0, 256, 256), rotary_frequencies(32, 1e4))
    for call in (
        lambda: linear_frequencies(8, 1e4, 0.0),
        lambda: dynamic_ntk_frequencies(8, 1e4, -1.0, 4, 8),
        lambda: dynamic_ntk_frequencies(2, 1e4, 2.0, 4, 8),
    ):
        with pytest.raises(InvalidInputError):
            call()


def test_attention_factor_equals_the_papers() -> None:
    log = math.log(40)
    assert yarn_attention_factor(40.0) == pytest.approx(0.1 * log + 1)
    assert yarn_attention_factor(0.5) == 1.0
    assert yarn_attention_factor(40.0, mscale=1.0, mscale_all_dim=1.0) == 1.0
    both = yarn_attention_factor(40.0, mscale=0.7, mscale_all_dim=0.3, attn_factor=2.0)
    assert both == pytest.approx(2 * (0.07 * log + 1) / (0.03 * log + 1))
    assert yarn_attention_factor(40.0, mscale=0.7) == pytest.approx(0.07 * log + 1)


def test_limits_of_torch_npu() -> None:
    a2, a5 = facts_of("A2"), facts_of("A5")
    x, table = torch.zeros(3, 2, 64), tables(3, 32)
    way = (False, False, False)
    assert npu.supports_apply_rotary(a2, x, *table, *way)
    assert npu.supports_apply_rotary_qk(a2, x, x, *table, *way)
    half, halves = x.half(), tuple(one.half() for one in table)
    assert npu.supports_apply_rotary(a2, half, *halves, *way)
    assert npu.supports_apply_rotary_qk(a2, half, half, *halves, *way)
    wide = torch.zeros(1, 1, 1024)
    many = torch.zeros(3, 1000, 64)
    short = (table[0][:, :16], table[1][:, :16])
    odd = torch.zeros(3, 2, 96)
    refusals = (
        (npu.supports_apply_rotary(a5, x, *table, *way), "A5"),
        (npu.supports_apply_rotary(a2, half, *table, *way), "float16 with cos and sin of torch.fl"),
        (npu.supports_apply_rotary(a2, x, *halves, *way), "float32 with cos and sin of torch.fl"),
        (npu.supports_apply_rotary(a2, wide, *tables(1, 448), *way), "896 rotated"),
        (npu.supports_apply_rotary(a2, x, *tables(3, 0), *way), "0 rotated"),
        (npu.supports_apply_rotary(a2, many, *table, *way), "1000 heads"),
        (npu.supports_apply_rotary(a2, x[:0], *tables(0, 32), *way), "empty"),
        (npu.supports_apply_rotary_triton(a2, x.double(), *table, *way), "float64"),
        (npu.supports_apply_rotary_qk(a5, x, x, *table, *way), "A5"),
        (
            npu.supports_apply_rotary_qk(a2, half, half, *table, *way),
            "cos and sin of torch.float32",
        ),
        (npu.supports_apply_rotary_qk(a2, x, x, *table, True, False, False), "interleaved"),
        (npu.supports_apply_rotary_qk(a2, odd, odd, *tables(3, 48), *way), "96 channels"),
        (npu.supports_apply_rotary_qk(a2, x, x, *short, *way), "32 of 64"),
        (npu.supports_apply_rotary_qk(a2, x[:0], x[:0], *table, *way), "empty"),
        (npu.supports_apply_rotary_qk_triton(a2, x.double(), x, *table, *way), "float64"),
        (
            npu.supports_rms_norm_rotary_triton(
                a2, torch.zeros(1, 1, 4096), None, 1e-6, *tables(1, 32)
            ),
            "4096 channels",
        ),
    )
    for support, reason in refusals:
        assert not support
        assert reason in support.reason
