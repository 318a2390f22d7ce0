"""The reference of fused attention against torch's own attention, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_ops_core.devices import device_family
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.contract import Contract
from torch.nn import functional as F

pytestmark = pytest.mark.contract

F16 = torch.float16
ABOVE = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


@pytest.fixture(autouse=True)
def _on_cpu(contract: Contract) -> None:
    """Calls of torch.ops.npu on CPU tensors run the references."""


def paged(tokens: int, rows: int = 128) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    """Arguments for two requests, the first of nearly two blocks, and its keys and values."""
    context = min(150, 2 * rows - 2)
    key, value = torch.randn(2, 6, rows, 32).to(F16).unbind(0)
    table = torch.tensor([[4, 1], [0, 5]], dtype=torch.int32)
    given = {
        "query": torch.randn(2, tokens, 4, 16).to(F16), "key": key, "value": value,
        "block_table": table, "actual_seq_lengths_kv": [context, 20], "num_heads": 4,
        "num_key_value_heads": 2, "scale": 0.25, "input_layout": "BSND", "block_size": rows,
        "softmax_lse_flag": True,
    }  # fmt: skip
    own = [torch.cat((one[4], one[1]))[:context].view(-1, 2, 16).float() for one in (key, value)]
    return given, own[0], own[1]


@pytest.mark.parametrize(("tokens", "window"), [(1, None), (9, None), (9, 5)])
def test_attention_over_pages(tokens: int, window: int | None) -> None:
    given, key, value = paged(tokens)
    if tokens > 1:
        given |= {"atten_mask": ABOVE, "sparse_mode": 3}
    if window:
        given |= {"sparse_mode": 4, "pre_tokens": window - 1, "next_tokens": 0}
    out, lse = torch.ops.npu.npu_fused_infer_attention_score(**given)
    at = torch.arange(150 - tokens, 150).unsqueeze(-1)
    seen = (torch.arange(150) <= at) & (torch.arange(150) > at - (window or 1000))
    query = given["query"][0].float().transpose(0, 1)
    keys, values = (one.repeat_interleave(2, 1).transpose(0, 1) for one in (key, value))
    expected = F.scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=0.25)
    torch.testing.assert_close(out[0].transpose(0, 1).float(), expected, rtol=2e-3, atol=2e-3)
    logits = (query @ keys.mT * 0.25).masked_fill(~seen, float("-inf"))
    torch.testing.assert_close(lse[0, ..., 0], logits.logsumexp(-1), rtol=1e-4, atol=1e-4)


def test_attention_with_a_shift() -> None:
    query, key, value = (torch.randn(2, 7, 3, 16).to(F16) for _ in range(3))
    shift = torch.randn(1, 3, 7, 7).to(F16)
    out, lse = torch.ops.npu.npu_fused_infer_attention_score(
        query, key, value, pse_shift=shift, num_heads=3, scale=1.0, input_layout="BSND"
    )
    q, k, v = (one.float().transpose(1, 2) for one in (query, key, value))
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=shift.float(), scale=1.0)
    torch.testing.assert_close(out.transpose(1, 2).float(), expected, rtol=2e-3, atol=2e-3)
    assert lse.numel() == 0


@pytest.mark.parametrize(
    ("tokens", "broken", "message"),
    [
        (1, {"num_heads": 3}, "3 heads"),
        (1, {"block_size": 64}, "block_size=64"),
        (1, {"actual_seq_lengths_kv": [150]}, "1 lengths"),
        (1, {"sparse_mode": 3}, "mode 3"),
        (1, {"input_layout": "BSH", "query": torch.zeros(2, 1, 64, dtype=F16)}, "BSH"),
        (2, {"sparse_mode": 0}, "sparse_mode=0"),
        (2, {"sparse_mode": 3, "atten_mask": ~ABOVE}, "a mask"),
        (2, {"sparse_mode": 3, "atten_mask": ABOVE, "actual_seq_lengths_kv": [1, 20]}, "2 tokens"),
    ],
)
def test_refusals(tokens: int, broken: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        torch.ops.npu.npu_fused_infer_attention_score(**(paged(tokens)[0] | broken))


def test_small_blocks_are_for_one_token() -> None:
    given, *_ = paged(1, rows=16)
    torch.ops.npu.npu_fused_infer_attention_score(**given)
    given, *_ = paged(2, rows=16)
    given |= {"sparse_mode": 3, "atten_mask": ABOVE}
    with pytest.raises(InvalidInputError, match="blocks of 16"):
        torch.ops.npu.npu_fused_infer_attention_score(**given)


def test_it_is_not_on_a5() -> None:
    with device_family("A5"), pytest.raises(InvalidInputError, match="A5"):
        torch.ops.npu.npu_fused_infer_attention_score(**paged(1)[0])
