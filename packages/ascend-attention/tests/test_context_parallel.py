"""Contexts that ranks share: operators against brute force, exchanges on ranks in threads."""

from __future__ import annotations

import pytest
import torch
from ascend_attention.context_shard import ContextShard
from ascend_attention.layers import context_parallel
from ascend_attention.layers.context_parallel import ContextParallel
from ascend_attention.layers.context_routes import requests_to_gather, routes_of
from ascend_attention.ops.context_parallel import (
    local_tokens,
    merge_packed_states,
    pack_attention_states,
    packed_words,
)
from ascend_attention.ops.context_parallel.candidates import best_candidates, token_candidates
from ascend_attention.ops.mla_attention import mla_attention
from ascend_attention.ops.sparse_mla_states import sparse_mla_states
from ascend_attention.ops.sparse_mla_states.cases import CASES
from ascend_ops_core.cases import Case
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing import assert_close
from ascend_ops_core.testing.simulated_group import SimulatedGroup, on_ranks

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NAN, NOTHING = float("nan"), float("-inf")
SMALL = [case for case in CASES["sparse_mla_states"] if not case.large]


@pytest.mark.oracle(
    "ascend_attention::pack_attention_states", "values and logarithms read back one by one"
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("ranks", "width"), [(1, 1), (2, 8), (3, 5)])
def test_packed_rows_hold_every_bit(ranks: int, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    each, tokens = 2, 3
    outs = torch.randn(tokens, ranks * each, width).to(dtype)
    lses = torch.randn(tokens, ranks * each)
    lses[1], outs[2, 0] = NOTHING, NAN
    packed = pack_attention_states(outs, lses, ranks)
    assert packed.shape == (ranks, tokens, each, packed_words(width, dtype))
    for p in range(ranks):
        for t in range(tokens):
            for h in range(each):
                row = packed[p, t, h]
                values = row[:-1].contiguous().view(dtype)
                own = outs[t, p * each + h]
                assert torch.equal(values[:width].isnan(), own.isnan())
                assert torch.equal(values[:width].nan_to_num(), own.nan_to_num())
                assert not values[width:].any()
                assert float(row[-1:].view(torch.float32)) == float(lses[t, p * each + h])


@pytest.mark.oracle(
    "ascend_attention::merge_packed_states", "attention over the whole context in float64"
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_merged_ranks_equal_the_whole(dtype: torch.dtype) -> None:
    """Rank 1 has no row for one token, and sends NaN there; nobody has one for the last token."""
    torch.manual_seed(0)
    tokens, heads, width = 5, 3, 7
    logits = torch.randn(tokens, heads, 20, dtype=torch.float64) * 3
    logits[1, :, 6:14], logits[4] = NOTHING, NOTHING
    values = torch.randn(20, width, dtype=torch.float64)
    packed = []
    for part in (slice(0, 6), slice(6, 14), slice(14, 20)):
        outs = (logits[..., part].softmax(-1) @ values[part]).to(dtype)
        packed.append(pack_attention_states(outs, logits[..., part].logsumexp(-1).float(), 1)[0])
    got, lse = merge_packed_states(torch.stack(packed), width, dtype)
    assert got.dtype == dtype
    assert_close(got[:4], logits[:4].softmax(-1) @ values, scale=2)
    assert_close(lse[:4], logits[:4].logsumexp(-1), scale=4)
    assert not got[4].any()
    assert lse[4].eq(NOTHING).all()


@pytest.mark.oracle("ascend_attention::local_tokens", "a walk over the selected tokens")
@pytest.mark.parametrize(("ranks", "interleave"), [(1, 1), (2, 1), (3, 4), (4, 16)])
def test_the_local_view_of_a_selection(ranks: int, interleave: int) -> None:
    torch.manual_seed(ranks)
    context, columns = 70, 12
    selected = torch.stack([torch.randperm(context)[:columns] for _ in range(4)]).int()
    selected[1, 3:] = -1
    selected[2] = -1
    found = []
    for rank in range(ranks):
        shard = ContextShard(ranks, rank, interleave)
        rows = local_tokens(selected, shard, columns)
        for t in range(4):
            own = sorted(
                s for s in selected[t].tolist() if s >= 0 and s // interleave % ranks == rank
            )
            expected = [s // (interleave * ranks) * interleave + s % interleave for s in own]
            assert rows[t].tolist() == expected + [-1] * (columns - len(own))
        found.append(shard.token(rows))
    together = torch.cat(found, dim=1).sort(descending=True).values[:, :columns]
    assert torch.equal(together, selected.sort(descending=True).values)
    none = local_tokens(selected[:0], ContextShard(2, 0), 3)
    assert none.shape == (0, 3)


def test_fewer_places_keep_the_rows() -> None:
    selected = torch.tensor([[4, 0, 3, -1]], dtype=torch.int32)
    assert local_tokens(selected, ContextShard(2, 0), 2).tolist() == [[0, 2]]
    assert local_tokens(selected, ContextShard(2, 1), 1).tolist() == [[1]]


@pytest.mark.oracle("ascend_attention::sparse_mla_states", "loops over tokens and heads, float64")
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_sparse_states_equal_loops(case: Case) -> None:
    arguments = case.arguments()
    latent, rope, latents, ropes, selected, table, request, scale = arguments
    page = latents.shape[1]
    out, lse = sparse_mla_states(*arguments)
    assert lse.dtype == torch.float32
    for t in range(latent.shape[0]):
        rows = [s for s in selected[t].tolist() if s >= 0]
        if not rows:
            assert not out[t].any()
            assert lse[t].eq(NOTHING).all()
            continue
        places = [(int(table[int(request[t]), s // page]), s % page) for s in rows]
        c = torch.stack([latents[p] for p in places]).double()
        r = torch.stack([ropes[p] for p in places]).double()
        logits = (latent[t].double() @ c.T + rope[t].double() @ r.T) * scale
        assert_close(out[t], logits.softmax(-1) @ c, scale=case.scale)
        assert_close(lse[t], logits.logsumexp(-1), scale=4)


class Shared:
    """Rows of some requests, whole and as every rank keeps them."""

    def __init__(self, contexts: list[int], ranks: int, interleave: int, page: int, width: int):
        self.rows = [torch.randint(-3, 4, (n, width)).float() for n in contexts]
        self.page, self.ranks = page, ranks
        self.shards = [ContextShard(ranks, r, interleave) for r in range(ranks)]
        used = [-(-n // (page * ranks)) for n in contexts]
        blocks = sum(used) + 1
        self.table = torch.full((len(contexts), max([1, *used])), blocks - 1, dtype=torch.int32)
        order = torch.randperm(blocks - 1).int()
        for r, count in enumerate(used):
            self.table[r, :count], order = order[:count], order[count:]
        self.caches = [torch.full((blocks, page, width), NAN) for _ in range(ranks)]
        for r, rows in enumerate(self.rows):
            for cache, shard in zip(self.caches, self.shards, strict=True):
                row = shard.row(torch.arange(len(rows)))
                here = row >= 0
                place = self.table[r, row[here] // page].long(), row[here] % page
                cache[place] = rows[here]


SHARINGS = [
    pytest.param(2, 1, 4, id="2 ranks"),
    pytest.param(3, 4, 4, id="3 ranks, whole blocks"),
    pytest.param(4, 2, 8, id="4 ranks, pairs"),
]


@pytest.mark.parametrize(("ranks", "interleave", "page"), SHARINGS)
@pytest.mark.parametrize("tiles", [False, True], ids=["at once", "in tiles"])
def test_queries_that_travel_see_the_whole_context(
    ranks: int, interleave: int, page: int, tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token, a length around a block of all ranks, padding, and ranks without any row."""
    torch.manual_seed(ranks)
    if tiles:
        monkeypatch.setattr(context_parallel, "MOST_ELEMENTS", 1)
    rank_width, rotary, each = 6, 2, 2
    shared = Shared([1, page * ranks, page * ranks + 1, 41], ranks, interleave, page, 8)
    place = [(0, 0), (1, page * ranks - 1), (2, page * ranks - 1), (2, page * ranks), (3, 40)]
    place.append((0, -1))
    request, position = (torch.tensor(one) for one in zip(*place, strict=True))
    query = torch.randn(len(place), ranks * each, 8)

    def on_rank(group: SimulatedGroup) -> torch.Tensor:
        exchange = ContextParallel(group, interleave, each)
        cache = shared.caches[group.rank_in_group]
        routes = routes_of(
            exchange.shard, request, position, shared.table, page, 41, None, ranks * each
        )
        sent = routes.sent
        assert sent is not None
        assert routes.gathered is None
        assert int(sent.rows.max()) <= sent.most_rows

        def over_own_rows(
            latent: torch.Tensor, rope: torch.Tensor, part: slice
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return mla_attention(
                latent, rope, cache[..., :rank_width], cache[..., rank_width:], shared.table,
                sent.request[part], sent.rows[part] - 1, 0.3,
            )  # fmt: skip

        own = query[:, group.rank_in_group * each :][:, :each]
        found = exchange.attend(own[..., :rank_width], own[..., rank_width:], over_own_rows)
        rounds = len(place) if tiles else 1
        assert group.calls == ["all_gather", "all_to_all"] * rounds
        assert found.shape == (len(place), each, rank_width)
        return found

    found = torch.cat(on_ranks(ranks, on_rank), dim=1)
    for t, (r, p) in enumerate(place):
        if p < 0:
            assert not found[t].any()
            continue
        rows = shared.rows[r][: p + 1].double()
        weights = (0.3 * query[t].double() @ rows.T).softmax(-1)
        assert_close(found[t], weights @ rows[:, :rank_width], scale=8)
    assert rotary + rank_width == 8


@pytest.mark.parametrize(("ranks", "interleave", "page"), SHARINGS)
def test_gathered_blocks_hold_the_context_in_order(ranks: int, interleave: int, page: int) -> None:
    torch.manual_seed(ranks)
    # The second request is too long for its tokens, the last has too few.
    lens, context = [20, 17, 30, 3], [20, 500, 61, 30]
    shared = Shared(context, ranks, interleave, page, 5)
    request = torch.arange(4).repeat_interleave(torch.tensor(lens))
    position = torch.cat(
        [torch.arange(n - count, n) for n, count in zip(context, lens, strict=True)]
    )
    assert requests_to_gather(lens, context, 2) == [0, 2]

    def on_rank(group: SimulatedGroup) -> None:
        exchange = ContextParallel(group, interleave, 1)
        cache = shared.caches[group.rank_in_group]
        # What the host knows may be more than what there is.
        known = lens, [context[0] + 3, *context[1:]]
        routes = routes_of(exchange.shard, request, position, shared.table, page, 500, known, 2)
        sent, gathered = routes.sent, routes.gathered
        assert sent is not None
        assert gathered is not None
        assert sent.index is not None
        assert torch.equal(sent.request, torch.tensor([1] * 17 + [3] * 3))
        together = torch.cat([sent.index, gathered.index]).sort().values
        assert torch.equal(together, torch.arange(sum(lens)))
        assert gathered.seq_lens.tolist() == [20, 61]
        assert gathered.query_ends.tolist() == [20, 50]
        wide, narrow, scales = exchange.gather_blocks(
            [cache, cache[..., 1:3].half(), cache[..., :1].to(torch.int8)], gathered.blocks
        )
        assert group.calls == ["all_gather"]
        for place, r in enumerate((0, 2)):
            rows = wide[gathered.block_table[place].long()].flatten(0, 1)[: context[r]]
            assert torch.equal(rows, shared.rows[r])
            rows = narrow[gathered.block_table[place].long()].flatten(0, 1)[: context[r]]
            assert torch.equal(rows, shared.rows[r][:, 1:3].half())
            rows = scales[gathered.block_table[place].long()].flatten(0, 1)[: context[r]]
            assert torch.equal(rows, shared.rows[r][:, :1].to(torch.int8))

    on_ranks(ranks, on_rank)


def test_a_step_without_long_prompts_gathers_nothing() -> None:
    shard, none = ContextShard(2, 0), torch.zeros(0, dtype=torch.int64)
    routes = routes_of(shard, none, none, torch.zeros(1, 1).int(), 4, 9, ([0], [0]), 4)
    assert routes.gathered is None
    assert routes.sent is not None
    assert routes.sent.index is None
    assert requests_to_gather([16, 17, 17], [16, 17, 400], 4) == [1]
    assert requests_to_gather([1 << 16] * 3, [1 << 16] * 3, 4) == [0, 1]


@pytest.mark.parametrize(("ranks", "interleave", "page"), SHARINGS)
@pytest.mark.parametrize("top_k", [1, 7, 40, 64])
def test_candidates_of_ranks_give_the_selection_of_one(
    ranks: int, interleave: int, page: int, top_k: int
) -> None:
    """Small integers make scores exact and many of them equal, so that the rule decides."""
    torch.manual_seed(top_k)
    contexts = [1, 41, 64, page * ranks + 1]
    shared = Shared(contexts, ranks, interleave, page, 4)
    place = [(0, 0), (1, 40), (1, 5), (2, 63), (2, 62), (3, contexts[3] - 1), (0, -1)]
    request, position = (torch.tensor(one) for one in zip(*place, strict=True))
    query = torch.randint(-2, 3, (len(place), 3, 4)).float()
    weights = torch.randint(-2, 3, (len(place), 3)).float()

    def on_rank(group: SimulatedGroup) -> torch.Tensor:
        exchange = ContextParallel(group, interleave, 1)
        shard = exchange.shard
        own = token_candidates(
            query,
            weights,
            shared.caches[group.rank_in_group],
            shared.table,
            request,
            shard.count(position + 1),
            top_k,
            shard.most(64),
            shard,
        )
        chosen = best_candidates(exchange.gather_candidates(own), top_k)
        assert group.calls == ["all_gather"]
        return chosen

    found = on_ranks(ranks, on_rank)
    assert all(torch.equal(one, found[0]) for one in found)
    for t, (r, p) in enumerate(place):
        keys = shared.rows[r][: p + 1]
        scores = (weights[t] @ (query[t] @ keys.T).relu()).tolist()
        best = sorted(range(p + 1), key=lambda s: (-scores[s], s))[:top_k]
        row = found[0][t].tolist()
        assert sorted(row[: len(best)]) == sorted(best)
        assert row[len(best) :] == [-1] * (len(row) - len(best))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pack_attention_states(torch.zeros(1, 3, 2), torch.zeros(1, 3), 2), "3 heads"),
        (lambda: pack_attention_states(torch.zeros(1, 2, 2), torch.zeros(1, 3), 1), "lses"),
        (lambda: pack_attention_states(torch.zeros(1, 2, 2).int(), torch.zeros(1, 2), 1), "outs"),
        (lambda: merge_packed_states(torch.zeros(2, 1, 1, 4).int(), 2, torch.float32), "packed"),
        (lambda: merge_packed_states(torch.zeros(0, 1, 1, 3).int(), 2, torch.float32), "parts"),
        (lambda: merge_packed_states(torch.zeros(1, 1, 1, 3).int(), 2, torch.int32), "dtype"),
        (lambda: local_tokens(torch.zeros(1, 2), ContextShard(), 1), "selected"),
        (lambda: local_tokens(torch.zeros(1, 2).int(), ContextShard(), 3), "places=3"),
    ],
)
def test_bad_arguments_are_refused(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(InvalidInputError, match=message):
        call()
