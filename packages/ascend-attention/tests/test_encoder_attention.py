"""Attention within sequences against brute force, and the limits of the fused operator."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from ascend_attention.ops.encoder_attention import encoder_attention, npu
from ascend_attention.ops.encoder_attention.cases import sequences
from ascend_ops_core.cases import Inputs
from ascend_ops_core.devices import FAMILIES
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.oracle("ascend_attention::encoder_attention", "brute force in float64, token by token")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", [[], [1], [3, 0, 17, 1]])
@pytest.mark.parametrize("host", [False, True])
def test_attention_equals_brute_force(lens: list[int], host: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(len(lens))
    tokens, heads, key_heads = sum(lens) + 2, 4, 2
    query = torch.randn(tokens, heads, 5).to(dtype)
    key, value = (torch.randn(tokens, key_heads, 5).to(dtype) for _ in range(2))
    key[sum(lens) :] = value[sum(lens) :] = float("nan")
    cu = torch.tensor([0, *lens]).cumsum(0)
    ends = cu[1:].tolist() if host else []
    out = encoder_attention(query, key, value, cu, 0.4, ends=ends)
    assert out.dtype == dtype
    assert not out[sum(lens) :].any()
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        for t in range(start, end):
            for h in range(heads):
                keys, values = (one[start:end, h // 2].double() for one in (key, value))
                weights = (0.4 * keys @ query[t, h].double()).softmax(-1)
                assert_close(out[t, h], weights @ values, scale=2)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("query", {"query": torch.zeros(2, 4, 8, dtype=torch.int32)}),
        ("key", {"key": torch.zeros(2, 2, 9)}),
        ("value", {"value": torch.zeros(2, 1, 8)}),
        ("4 query heads with 3 key heads", {"key": torch.zeros(2, 3, 8),
                                            "value": torch.zeros(2, 3, 8)}),
        ("cu_seqlens", {"cu_seqlens": torch.zeros(2)}),
        ("2 ends", {"ends": [1, 2]}),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(name: str, broken: dict[str, Any]) -> None:
    given = {
        "query": torch.zeros(2, 4, 8),
        "key": torch.zeros(2, 2, 8),
        "value": torch.zeros(2, 2, 8),
        "cu_seqlens": torch.tensor([0, 2]),
    }
    with pytest.raises(InvalidInputError, match=name):
        encoder_attention(**(given | broken), scale=1.0)


@pytest.mark.parametrize(
    ("reason", "given"),
    [
        (None, {}),
        (None, {"width": 80}),
        ("heads of 72", {"width": 72}),
        ("device family A5", {"family": "A5"}),
        ("torch.float32", {"dtype": torch.float32}),
        ("only the device knows", {"host": False}),
        ("130 heads with 2 key heads", {"heads": 130}),
        ("no tokens", {"lens": [0, 0]}),
    ],
)
def test_limits_of_the_fused_operator(reason: str | None, given: dict[str, Any]) -> None:
    settings = {
        "lens": [5, 5], "heads": 4, "key_heads": 2, "width": 64, "dtype": torch.bfloat16,
        "host": True,
    }  # fmt: skip
    given = settings | given
    facts = FAMILIES[given.pop("family", "A2")]
    support = npu.supports_encoder_attention(facts, *sequences(Inputs("meta"), **given))
    assert bool(support) is (reason is None)
    assert reason is None or re.search(reason, support.reason)
