"""The indexer's selection, exact against brute force, and its layer against transformers."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.layers.indexer import DeepseekV4Indexer
from ascend_attention.ops.indexer import per_request, select_entries
from ascend_attention.step import StepLayout
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding
from ascend_ops_core.testing import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st

RATIO = 4
ROWS = 5
WIDTH = 8
HEADS = 3


class Keys:
    """Index keys of a batch, paged in shuffled blocks; every row without a key is NaN."""

    def __init__(self, lengths: list[int]) -> None:
        counts = [length // RATIO for length in lengths]
        columns = max([1, *(-(-count // ROWS) for count in counts)])
        blocks = len(lengths) * columns + 1
        order = torch.randperm(blocks)
        self.table = order[: len(lengths) * columns].view(len(lengths), columns)
        slab = torch.full((blocks, ROWS * WIDTH + 3), float("nan"))
        self.cache = slab[:, : ROWS * WIDTH].unflatten(1, (ROWS, WIDTH))
        self.keys = [torch.randn(count, WIDTH) for count in counts]
        for r, keys in enumerate(self.keys):
            for e, key in enumerate(keys):
                self.cache[self.table[r, e // ROWS], e % ROWS] = key


def score(query: torch.Tensor, weights: torch.Tensor, key: torch.Tensor) -> float:
    return sum(
        float(weights[h]) * max(0.0, float(query[h].double() @ key.double())) for h in range(HEADS)
    )


def check(batch: list[tuple[int, int]], top_k: int) -> None:
    lengths = [before + new for before, new in batch]
    starts = torch.tensor([0, *(new for _, new in batch)]).cumsum(0)
    layout, paged = StepLayout.build(starts, lengths), Keys(lengths)
    query = torch.randn(layout.num_tokens, HEADS, WIDTH)
    weights = torch.randn(layout.num_tokens, HEADS)
    got = select_entries(query, weights, paged.cache, paged.table, layout, RATIO, top_k)
    assert got.dtype == torch.int64
    assert got.shape[1] <= top_k
    for t, (r, p) in enumerate(zip(layout.request.tolist(), layout.position.tolist(), strict=True)):
        visible = (p + 1) // RATIO
        row = got[t].tolist()
        kept = [e for e in row if e >= 0]
        assert row == kept + [-1] * (len(row) - len(kept)), "unused places come last"
        assert len(set(kept)) == len(kept) == min(visible, top_k)
        scores = [score(query[t], weights[t], paged.keys[r][e]) for e in range(visible)]
        best = sorted(scores, reverse=True)[: len(kept)]
        assert_close(
            torch.tensor(sorted((scores[e] for e in kept), reverse=True)), torch.tensor(best)
        )
        cut = sorted(scores, reverse=True)
        if len(kept) < visible and cut[len(kept) - 1] - cut[len(kept)] > 1e-4:
            assert {e for e in range(visible) if scores[e] >= cut[len(kept) - 1]} == set(kept)


@settings(deadline=None, max_examples=40)
@given(
    batch=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 12)), min_size=1, max_size=4),
    top_k=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_equals_brute_force(batch: list[tuple[int, int]], top_k: int, seed: int) -> None:
    torch.manual_seed(seed)
    check(batch, top_k)


@settings(deadline=None, max_examples=40)
@given(
    before=st.lists(st.integers(0, 90), min_size=2, max_size=5),
    new=st.integers(1, 4),
    top_k=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_requests_with_equally_many_tokens(
    before: list[int], new: int, top_k: int, seed: int
) -> None:
    """A decode batch, with or without drafts, takes one product for all requests."""
    torch.manual_seed(seed)
    check([(length, new) for length in before], top_k)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 31, 32, 33, 36])
@pytest.mark.parametrize("from_start", [True, False])
def test_around_the_length_that_fills_top_k(length: int, from_start: bool) -> None:
    check([(0, length) if from_start else (length - 1, 1)], top_k=8)


def test_tiles_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    monkeypatch.setattr(per_request, "_TILE_ELEMENTS", 1)
    check([(10, 9), (0, 30), (60, 1)], top_k=5)


def test_a_short_request_beside_a_long_one_keeps_everything() -> None:
    layout, paged = StepLayout.build([0, 1, 2], [9, 80]), Keys([9, 80])
    query, weights = torch.randn(2, HEADS, WIDTH), torch.ones(2, HEADS)
    got = select_entries(query, weights, paged.cache, paged.table, layout, RATIO, 6)
    assert got[0].tolist() == [0, 1, -1, -1, -1, -1]
    assert (got[1] >= 0).all()


@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_nothing_to_select(tokens: int) -> None:
    layout, paged = StepLayout.build([0, tokens], [tokens]), Keys([tokens])
    query, weights = torch.randn(tokens, HEADS, WIDTH), torch.ones(tokens, HEADS)
    got = select_entries(query, weights, paged.cache, paged.table, layout, RATIO, 6)
    assert got.shape == (tokens, 0)


def test_negative_dots_score_zero_before_heads_are_summed() -> None:
    # Without the ReLU entry 0 would lose to entry 1: 1 - 5 < 0.5 + 0.
    paged, layout = Keys([8]), StepLayout.build([0, 1], [8])
    query = torch.zeros(1, HEADS, WIDTH)
    query[0, 0, 0] = query[0, 1, 1] = 1.0
    paged.cache[paged.table[0, 0], :2] = 0.0
    paged.cache[paged.table[0, 0], 0, :2] = torch.tensor([1.0, -5.0])
    paged.cache[paged.table[0, 0], 1, :2] = torch.tensor([0.5, 0.0])
    got = select_entries(query, torch.ones(1, HEADS), paged.cache, paged.table, layout, RATIO, 1)
    assert got.tolist() == [[0]]


@torch.no_grad()
def test_layer_equals_transformers() -> None:
    from transformers import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Indexer as Oracle

    config = DeepseekV4Config(
        num_hidden_layers=1,
        layer_types=["compressed_sparse_attention"],
        hidden_size=24,
        q_lora_rank=12,
        index_n_heads=16,
        index_head_dim=16,
        head_dim=16,
        partial_rotary_factor=0.5,
        index_topk=6,
        max_position_embeddings=256,
    )
    oracle = Oracle(config)
    for parameter in oracle.parameters():
        parameter.normal_(std=0.3)
    oracle.kv_norm.weight.fill_(1.1)
    rotary = ComplexExpRotaryEmbedding(8, config.compress_rope_theta, 256)
    layer = DeepseekV4Indexer(24, 12, 16, 16, 6, RATIO, config.rms_norm_eps, rotary, torch.float32)
    layer.wq_b.copy_(oracle.q_b_proj.weight)
    layer.weights_proj.copy_(oracle.scorer.weights_proj.weight)
    layer.compressor.wkv_wgate.copy_(torch.cat([oracle.kv_proj.weight, oracle.gate_proj.weight]))
    layer.compressor.ape.copy_(oracle.position_bias)
    layer.compressor.norm.copy_(oracle.kv_norm.weight)

    length = 61
    hidden, latent = torch.randn(length, 24), torch.randn(length, 12)
    expected = oracle(hidden[None], latent[None], torch.arange(length)[None], None, 0)[0]
    layout = StepLayout.build([0, length], [length])
    query, weights = layer.query(hidden, latent, *rotary.gather(layout.position))
    assert query.shape == (length, 16, 16)

    states = layer.compressor.project(hidden, layout.position)
    count = length // RATIO
    padded = torch.cat([torch.full((RATIO, states.shape[1]), float("nan")), states])
    windows = torch.stack([padded[e * RATIO : (e + 2) * RATIO] for e in range(count)])
    keys = layer.compressor.finish(windows, torch.arange(count), torch.float32)
    got = select_entries(
        query, weights, keys.view(count, 1, 16), torch.arange(count)[None], layout, RATIO, 6
    )
    assert [set(row.tolist()) for row in got] == [set(row.tolist()) for row in expected]
