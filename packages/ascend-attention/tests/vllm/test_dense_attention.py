"""The attention of ordinary models on a CPU: what a step's metadata says, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_ops_core import InvalidInputError

pytestmark = pytest.mark.engine

TABLE = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32)
SLOTS = torch.tensor([130, 131, 5 + 128, -1])


def metadata(known: bool = True) -> Any:
    from ascend_attention.vllm.dense.metadata import build_metadata

    lens = torch.tensor([6, 4], dtype=torch.int32)
    return build_metadata(torch.tensor([0, 2, 3]), lens, lens if known else None, TABLE, SLOTS)


def implementation(**given: Any) -> Any:
    from ascend_attention.vllm.dense import AscendAttentionBackendImpl

    return AscendAttentionBackendImpl(4, 8, 0.3, 2, **given)


@pytest.mark.parametrize("known", [True, False])
def test_where_tokens_are(known: bool) -> None:
    meta = metadata(known)
    assert meta.num_tokens == 3
    assert meta.request.tolist() == [0, 0, 1]
    assert meta.position.tolist() == [4, 5, 3]
    assert meta.slots.tolist() == SLOTS[:3].tolist()
    assert (meta.query_ends, meta.seq_lens) == (((2, 3), (6, 4)) if known else ((), ()))


def test_a_step_writes_its_rows_and_leaves_padding_zero() -> None:
    from ascend_attention.vllm.dsa.metadata import DeferredMetadata

    torch.manual_seed(0)
    cache = torch.randn(2, 4, 128, 2, 8)
    before = cache.clone()
    query, key, value = torch.randn(5, 4, 8), torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    out, shared = torch.full((5, 4, 8), 7.0), torch.full((5, 4, 8), 7.0)
    step = DeferredMetadata(metadata)
    reader = implementation(kv_sharing_target_layer_name="another")
    reader.forward(None, query, key, value, cache, step, shared)
    assert torch.equal(cache, before)
    implementation().forward(None, query, key, value, cache, step, out)
    assert torch.equal(cache[0, 1, [2, 3, 5]], key[:3])
    assert torch.equal(cache[1, 1, [2, 3, 5]], value[:3])
    cache[:, 1, [2, 3, 5]] = before[:, 1, [2, 3, 5]]
    assert torch.equal(cache, before)
    assert not out[3:].any()
    assert out[:3].abs().sum() > 0
    assert not implementation().forward(None, query, key, value, cache, None, shared).any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alibi_slopes": [0.5] * 4}, "ALiBi"),
        ({"logits_soft_cap": 30.0}, r"soft cap of logits \(30"),
        ({"attn_type": "encoder_only"}, "encoder_only"),
    ],
)
def test_what_the_operator_lacks_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        implementation(**given)
    implementation(logits_soft_cap=0.0)


def test_a_quantised_output_is_refused() -> None:
    empty = torch.empty(0, 4, 8)
    with pytest.raises(InvalidInputError, match="quantised output"):
        implementation().forward(
            None, empty, empty, empty, empty, None, empty, output_scale=torch.ones(1)
        )
