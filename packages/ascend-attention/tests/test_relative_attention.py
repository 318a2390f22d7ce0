"""Attention with relative positions against transformers' T5 and SAM, and against brute force."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_attention.layers.relative_position import (
    RelativePositionBias,
    decomposed_relative_bias,
    relative_position_bucket,
)
from ascend_attention.ops.relative_attention import npu, relative_attention
from ascend_ops_core.devices import FAMILIES
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.oracle("ascend_attention::relative_attention", "brute force in float64, row by row")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("batch", "biases"), [(0, 1), (1, 1), (2, 1), (2, 2)])
def test_attention_equals_brute_force(batch: int, biases: int, dtype: torch.dtype) -> None:
    torch.manual_seed(batch)
    query = torch.randn(batch, 3, 2, 5).to(dtype)
    key, value = (torch.randn(batch, 7, 2, 5).to(dtype) for _ in range(2))
    bias = torch.randn(biases, 2, 3, 7)
    bias[:, 1, 2, 4:] = float("-inf")
    out = relative_attention(query, key, value, bias, 0.6)
    assert (out.dtype, out.shape) == (dtype, query.shape)
    for b in range(batch):
        for t in range(3):
            for h in range(2):
                logits = 0.6 * key[b, :, h].double() @ query[b, t, h].double()
                weights = (logits + bias[b % biases, h, t].double()).softmax(-1)
                assert_close(out[b, t, h], weights @ value[b, :, h].double(), scale=2)


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("tokens", [1, 40, 150])
def test_a_t5_layer(decoder: bool, tokens: int) -> None:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    torch.manual_seed(tokens)
    config = T5Config(
        d_model=24, d_kv=6, num_heads=4, relative_attention_num_buckets=16,
        relative_attention_max_distance=64, is_decoder=decoder, attn_implementation="eager",
    )  # fmt: skip
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    hidden = torch.randn(2, tokens, 24)
    hidden_keys = torch.zeros(1, 1, tokens, tokens)
    if decoder:
        hidden_keys.masked_fill_(torch.ones(tokens, tokens).triu(1).bool(), float("-inf"))
    with torch.no_grad():
        expected, position_bias, _ = theirs(hidden, mask=hidden_keys)
        ours = RelativePositionBias(16, 64, 4, bidirectional=not decoder)
        ours.weight.copy_(theirs.relative_attention_bias.weight)
        bias = ours(tokens, tokens)
        assert_close(bias, position_bias)
        query, key, value = (
            one(hidden).unflatten(-1, (4, 6)) for one in (theirs.q, theirs.k, theirs.v)
        )
        out = relative_attention(query, key, value, bias + hidden_keys, theirs.scaling)
        assert_close(theirs.o(out.flatten(2)), expected, scale=4)
        later = ours(1, tokens, earlier=tokens - 1)
        assert_close(later, bias[:, :, -1:])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (16, 20), (8, 300)])
def test_buckets_equal_those_of_transformers(bidirectional: bool, buckets: int, most: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-400, 401)
    expected = T5Attention._relative_position_bucket(distance, bidirectional, buckets, most)
    found = relative_position_bucket(
        distance, bidirectional=bidirectional, num_buckets=buckets, max_distance=most
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("buckets", "most"), [(2, 128), (32, 8)])
def test_buckets_that_make_no_sense_are_refused(buckets: int, most: int) -> None:
    with pytest.raises(InvalidInputError, match=r"buckets|max_distance"):
        relative_position_bucket(
            torch.zeros(1), bidirectional=True, num_buckets=buckets, max_distance=most
        )


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (3, 4)])
def test_a_sam_layer(rows: int, columns: int) -> None:
    """On its own grid, and on one for which the tables are interpolated."""
    from transformers import SamVisionConfig
    from transformers.models.sam.modeling_sam import SamVisionAttention

    torch.manual_seed(rows)
    config = SamVisionConfig(
        hidden_size=24, num_attention_heads=3, image_size=80, patch_size=16, qkv_bias=True,
    )  # fmt: skip
    theirs = SamVisionAttention(config, window_size=0).eval()
    torch.nn.init.normal_(theirs.rel_pos_h)
    torch.nn.init.normal_(theirs.rel_pos_w)
    image = torch.randn(2, rows, columns, 24)
    with torch.no_grad():
        expected, _ = theirs(image)
        qkv = theirs.qkv(image).view(2, rows * columns, 3, 3, 8)
        query, key, value = qkv.unbind(2)
        bias = decomposed_relative_bias(query, theirs.rel_pos_h, theirs.rel_pos_w, (rows, columns))
        out = relative_attention(query, key, value, bias, theirs.scale)
        assert_close(theirs.proj(out.view(2, rows, columns, 24)), expected, scale=4)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("query", {"query": torch.zeros(2, 3, 2, 4, dtype=torch.int32)}),
        ("key", {"key": torch.zeros(2, 5, 1, 4)}),
        ("value", {"value": torch.zeros(2, 6, 2, 4)}),
        ("bias", {"bias": torch.zeros(1, 2, 3, 4)}),
        ("bias of 3 batches", {"bias": torch.zeros(3, 2, 3, 5)}),
        ("no keys", {"key": torch.zeros(2, 0, 2, 4), "value": torch.zeros(2, 0, 2, 4),
                     "bias": torch.zeros(1, 2, 3, 0)}),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(name: str, broken: dict[str, Any]) -> None:
    given = {
        "query": torch.zeros(2, 3, 2, 4),
        "key": torch.zeros(2, 5, 2, 4),
        "value": torch.zeros(2, 5, 2, 4),
        "bias": torch.zeros(1, 2, 3, 5),
    }
    with pytest.raises(InvalidInputError, match=name):
        relative_attention(**(given | broken), scale=1.0)


@pytest.mark.parametrize(
    ("scale", "batches", "keys", "taken"),
    [(1.0, 1, 8, True), (0.125, 1, 8, True), (0.3, 1, 8, False), (1.0, 2, 8, False),
     (1.0, 1, 9, False)],
)  # fmt: skip
def test_limits_of_the_fused_operator(scale: float, batches: int, keys: int, taken: bool) -> None:
    query = torch.empty(2, 8, 4, 32, dtype=torch.bfloat16, device="meta")
    key = torch.empty(2, keys, 4, 32, dtype=torch.bfloat16, device="meta")
    bias = torch.empty(batches, 4, 8, keys, dtype=torch.bfloat16, device="meta")
    support = npu.supports_relative_attention(FAMILIES["A3"], query, key, key, bias, scale)
    assert bool(support) is taken
    assert not npu.supports_relative_attention(FAMILIES["A5"], query, key, key, bias, scale)
