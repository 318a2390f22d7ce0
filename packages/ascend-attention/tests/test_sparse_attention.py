"""Sparse attention against a dense brute force with sinks, masks and poison."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.ops import sparse_attention as family
from ascend_attention.ops.paged_rows import RowIndex
from ascend_attention.ops.sparse_attention import RowSource, reference, sparse_attention
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing import assert_close

WIDTH = 12
HEADS = 3


def source(tokens: int, rows: int, share: float | None, dtype: torch.dtype) -> RowSource:
    """Rows of a strided cache; about ``share`` of a token's rows are valid, None for all.

    Invalid places point at a block of NaN.
    """
    slab = torch.randn(5, 4 * WIDTH + 3).to(dtype)
    slab[4] = float("nan")
    cache = slab[:, : 4 * WIDTH].unflatten(1, (4, WIDTH))
    index = RowIndex(torch.randint(0, 4, (tokens, rows)), torch.randint(0, 4, (tokens, rows)))
    if share is None:
        return RowSource(cache, index, None)
    valid = torch.rand(tokens, rows) < share
    index.block[~valid] = 4
    return RowSource(cache, index, valid)


def brute_force(
    query: torch.Tensor, sources: list[RowSource], sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    out = torch.zeros(query.shape, dtype=torch.float64)
    for t in range(query.shape[0]):
        rows = [
            one.cache[one.index.block[t, i], one.index.offset[t, i]].double()
            for one in sources
            for i in range(one.index.block.shape[1])
            if one.valid is None or one.valid[t, i]
        ]
        for h in range(query.shape[1]):
            logits = [float(query[t, h].double() @ row) * scale for row in rows]
            weights = torch.tensor([*logits, float(sinks[h])], dtype=torch.float64).softmax(0)
            for weight, row in zip(weights, rows, strict=False):
                out[t, h] += weight * row
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 3, 17])
@pytest.mark.parametrize(
    "shape",
    [[(5, None)], [(5, 0.6)], [(5, 0.7), (3, None)], [(4, 0.5), (0, None), (7, 0.5)]],
    ids=["full", "masked", "both", "empty source between"],
)
def test_equals_dense(
    shape: list[tuple[int, float | None]], tokens: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(tokens)
    sources = [source(tokens, rows, share, dtype) for rows, share in shape]
    query, sinks = torch.randn(tokens, HEADS, WIDTH).to(dtype), torch.randn(HEADS)
    got = sparse_attention(query, sources, sinks, 0.3)
    assert got.dtype == dtype
    assert got.isfinite().all()
    assert_close(got, brute_force(query, sources, sinks, 0.3))


@pytest.mark.parametrize("tile", [1, 100, 250])
def test_tiles_do_not_matter(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # float16 has no kernel, so this is the definition in torch.
    sources = [source(9, 4, 0.8, torch.float16), source(9, 3, None, torch.float16)]
    query, sinks = torch.randn(9, HEADS, WIDTH).half(), torch.zeros(HEADS)
    expected = sparse_attention(query, sources, sinks, 1.0)
    monkeypatch.setattr(reference, "_TILE_ELEMENTS", tile)
    assert_close(sparse_attention(query, sources, sinks, 1.0), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("tokens", "heads", "widths"),
    [(1, 1, [1]), (1, 16, [131, 66]), (2, 5, [3, 2]), (5, 7, [6, 1]), (33, 2, [9, 5])],
)
def test_kernel_equals_definition(
    tokens: int, heads: int, widths: list[int], dtype: torch.dtype
) -> None:
    pytest.importorskip("numba")
    torch.manual_seed(tokens)
    sources = [source(tokens, rows, 0.8, dtype) for rows in widths]
    query, sinks = torch.randn(tokens, heads, WIDTH).to(dtype), torch.randn(heads)
    kernels = family._cpu.load()
    assert kernels is not None
    assert kernels.supports(query, sources, sinks)
    got = kernels.sparse_attention(query, sources, sinks, 0.3)
    caches, blocks, offsets, valid = zip(
        *((one.cache, *one.index, one.valid) for one in sources), strict=True
    )
    assert_close(got, reference.sparse_attention(query, caches, blocks, offsets, valid, sinks, 0.3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("tokens", "heads", "width"), [(5, 9, 37), (1, 17, 16), (2, 8, 65)])
def test_tiles_of_heads_and_panels_of_rows(
    tokens: int, heads: int, width: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(heads)
    cache = torch.randn(3, 30, width).to(dtype)
    sources = []
    for rows in (70, 33):
        index = RowIndex(torch.randint(0, 3, (tokens, rows)), torch.randint(0, 30, (tokens, rows)))
        valid = torch.rand(tokens, rows) < 0.7
        # A token without rows, and one with those of a single panel.
        valid[0], valid[-1, 20:] = tokens == 1, False
        sources.append(RowSource(cache, index, valid))
    query, sinks = torch.randn(tokens, heads, width).to(dtype), torch.randn(heads)
    got = sparse_attention(query, sources, sinks, 0.2)
    assert_close(got, brute_force(query, sources, sinks, 0.2))


def test_what_the_kernel_leaves_to_the_definition() -> None:
    pytest.importorskip("numba")
    kernels = family._cpu.load()
    assert kernels is not None
    query, sinks = torch.randn(2, HEADS, WIDTH), torch.randn(HEADS)
    one = source(2, 3, None, torch.float32)
    assert kernels.supports(query, [one, one], sinks)
    assert not kernels.supports(query, [one, one, one], sinks)
    assert not kernels.supports(query, [source(2, 0, None, torch.float32)], sinks)
    assert not kernels.supports(query, [source(2, 3, None, torch.bfloat16)], sinks)
    assert not kernels.supports(query.transpose(0, 1), [one], sinks)
    assert not kernels.supports(query.half(), [source(2, 3, None, torch.float16)], sinks)


@pytest.mark.parametrize("sink", [-1e30, -5.0, 0.0, 5.0, 1e30])
def test_the_sink_takes_its_share_and_adds_nothing(sink: float) -> None:
    one = source(2, 1, None, torch.float32)
    query = torch.zeros(2, 1, WIDTH)
    got = sparse_attention(query, [one], torch.tensor([sink]), 1.0)
    # With a logit of zero the single row weighs 1 / (1 + exp(sink)).
    row = one.cache[one.index.block[:, 0], one.index.offset[:, 0]].unsqueeze(1)
    assert_close(got, row * torch.sigmoid(torch.tensor(-sink)))


def test_each_head_has_its_own_sink() -> None:
    one, query = source(1, 2, None, torch.float32), torch.randn(1, 1, WIDTH).repeat(1, 2, 1)
    got = sparse_attention(query, [one], torch.tensor([0.0, 9.0]), 1.0)
    assert got[0, 1].norm() < got[0, 0].norm()


def test_large_logits_do_not_overflow() -> None:
    sources = [source(4, 5, 0.7, torch.float32)]
    query, sinks = 1e4 * torch.randn(4, HEADS, WIDTH), 1e4 * torch.randn(HEADS)
    got = sparse_attention(query, sources, sinks, 1.0)
    assert_close(got, brute_force(query, sources, sinks, 1.0), scale=10)


def test_a_token_without_any_row_gives_zeros() -> None:
    one = source(2, 3, 0.0, torch.float32)
    got = sparse_attention(torch.randn(2, HEADS, WIDTH), [one], torch.randn(HEADS), 1.0)
    assert torch.equal(got, torch.zeros_like(got))


def test_nan_in_a_valid_row_is_not_hidden() -> None:
    one = source(2, 3, None, torch.float32)
    one.index.block[1, 2] = 4
    got = sparse_attention(torch.randn(2, HEADS, WIDTH), [one], torch.zeros(HEADS), 1.0)
    assert got[1].isnan().all()
    assert got[0].isfinite().all()


@pytest.mark.oracle("ascend_attention::sparse_attention", "transformers' DeepSeek-V4, brute force")
@torch.no_grad()
def test_equals_transformers_attention_function() -> None:
    from types import SimpleNamespace

    from transformers.models.deepseek_v4.modeling_deepseek_v4 import eager_attention_forward

    one = source(6, 7, 0.6, torch.float32)
    query, sinks = torch.randn(6, HEADS, WIDTH), torch.randn(HEADS)
    module = SimpleNamespace(num_key_value_groups=HEADS, sinks=sinks, training=False)
    assert one.valid is not None
    rows, _ = one.rows(slice(None), WIDTH)
    mask = torch.zeros(6, 1, 1, 7).masked_fill(~one.valid[:, None, None], float("-inf"))
    expected, _ = eager_attention_forward(
        module, query.unsqueeze(2), rows.unsqueeze(1), rows.unsqueeze(1), mask, 0.5
    )
    assert_close(sparse_attention(query, [one], sinks, 0.5), expected.squeeze(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["kernel", "definition"])
@pytest.mark.parametrize("masked", [False, True])
def test_padding_is_no_row(masked: bool, dtype: torch.dtype) -> None:
    plain = source(3, 6, 0.7 if masked else None, dtype)
    block, offset = plain.index
    kept = torch.tensor([0, 1, 3, 4])
    padded = RowIndex(block.clone(), offset.clone())
    padded.block[:, 2] = -1
    padded.offset[:, 5] = -1
    query, sinks = torch.randn(3, HEADS, WIDTH).to(dtype), torch.randn(HEADS)
    fewer = RowSource(
        plain.cache,
        RowIndex(block[:, kept], offset[:, kept]),
        None if plain.valid is None else plain.valid[:, kept],
    )
    got = sparse_attention(query, [RowSource(plain.cache, padded, plain.valid)], sinks, 0.3)
    assert_close(got, sparse_attention(query, [fewer], sinks, 0.3))


def test_no_source_gives_zeros() -> None:
    query = torch.randn(2, HEADS, WIDTH)
    assert torch.equal(sparse_attention(query, [], torch.zeros(HEADS), 1.0), query.zero_())


def test_inputs_that_do_not_fit_are_refused() -> None:
    one, query, sinks = (
        source(2, 3, 0.5, torch.float32),
        torch.randn(2, HEADS, WIDTH),
        torch.zeros(3),
    )
    block, offset = one.index
    for wrong in (
        RowSource(one.cache[..., :5], one.index, one.valid),
        RowSource(one.cache, RowIndex(block, offset[:, :2]), one.valid),
        RowSource(one.cache, RowIndex(block.float(), offset), one.valid),
        RowSource(one.cache, RowIndex(block[:1], offset[:1]), None),
        RowSource(one.cache, one.index, one.valid[:, :2] if one.valid is not None else None),
        RowSource(one.cache, one.index, torch.ones(2, 3)),
    ):
        with pytest.raises(InvalidInputError):
            sparse_attention(query, [wrong], sinks, 1.0)
    with pytest.raises(InvalidInputError):
        sparse_attention(query, [one], sinks[:2], 1.0)
    with pytest.raises(InvalidInputError):
        sparse_attention(query.double(), [one], sinks, 1.0)
