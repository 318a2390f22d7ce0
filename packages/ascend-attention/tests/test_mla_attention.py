"""Latent attention, its cache and the merge of parts against brute force and transformers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from ascend_attention.ops.attention_states import merge_attention_states
from ascend_attention.ops.mla_attention import mla_attention, npu, reference
from ascend_attention.ops.mla_attention.cases import step
from ascend_attention.ops.mla_cache import kv_rmsnorm_rope_cache
from ascend_attention.ops.mla_cache import npu as mla_cache_npu
from ascend_attention.ops.mla_cache.cases import writes
from ascend_attention.ops.paged_rows import RowIndex
from ascend_ops_core.cases import Inputs
from ascend_ops_core.devices import FAMILIES, device_family
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.launch import recorded_launches
from ascend_ops_core.testing import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
RANK, ROTARY, ROWS = 12, 4, 4
NAN = float("nan")


def paged(
    contexts: list[int], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Latents, rotated keys and block table of some requests, and the rows of each.

    What belongs to no context is NaN.
    """
    used = [-(-context // ROWS) for context in contexts]
    blocks = sum(used) + 1
    cache = torch.full((blocks, ROWS, RANK + ROTARY), NAN, dtype=dtype)
    table = torch.full((max(len(contexts), 1), max(used, default=1)), blocks - 1)
    order, rows = torch.randperm(blocks - 1), []
    for r, context in enumerate(contexts):
        own, order = order[: used[r]], order[used[r] :]
        table[r, : used[r]] = own
        row = torch.randn(context, RANK + ROTARY).to(dtype)
        for p in range(context):
            cache[own[p // ROWS], p % ROWS] = row[p]
        rows.append(row.double())
    return cache[..., :RANK], cache[..., RANK:], table, rows


@pytest.mark.oracle("ascend_attention::mla_attention", "brute force in float64, token by token")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("contexts", "tokens"),
    [([], []), ([1], [1]), ([3, 17, 9], [3, 1, 2]), ([40, 33], [15, 2]), ([37], [1])],
)
@pytest.mark.parametrize("padding", [0, 2])
def test_attention_equals_brute_force(
    contexts: list[int], tokens: list[int], padding: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(len(contexts))
    latents, ropes, table, rows = paged(contexts, dtype)
    place = [
        (r, p)
        for r, (context, n) in enumerate(zip(contexts, tokens, strict=True))
        for p in range(context - n, context)
    ] + [(0, -1)] * padding
    query = torch.randn(len(place), 3, RANK + ROTARY).to(dtype)
    request, position = (
        torch.tensor([one[i] for one in place], dtype=torch.int64) for i in range(2)
    )
    out, lse = mla_attention(
        query[..., :RANK], query[..., RANK:], latents, ropes, table, request, position, 0.3
    )
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    for t, (r, p) in enumerate(place):
        if p < 0:
            assert not out[t].any()
            assert lse[t].eq(float("-inf")).all()
            continue
        logits = 0.3 * query[t].double() @ rows[r][: p + 1].T
        assert_close(out[t], logits.softmax(-1) @ rows[r][: p + 1, :RANK], scale=2)
        assert_close(lse[t], logits.logsumexp(-1), scale=4)


def test_kernel_and_definition_meet_where_the_kernel_ends() -> None:
    """16 tokens run in the kernel and 17 by the definition; both give the same rows."""
    torch.manual_seed(1)
    latents, ropes, table, _ = paged([40], torch.float32)
    query = torch.randn(17, 5, RANK + ROTARY)
    position = torch.arange(23, 40)
    request = torch.zeros(17, dtype=torch.int64)

    def run(count: int) -> torch.Tensor:
        part = query[:count]
        return mla_attention(
            part[..., :RANK], part[..., RANK:], latents, ropes, table,
            request[:count], position[:count], 0.2,
        )[0]  # fmt: skip

    assert_close(run(17)[:16], run(16).double(), scale=2)
    expected, _ = reference.mla_attention(
        query[..., :RANK], query[..., RANK:], latents, ropes, table, request, position, 0.2
    )
    assert_close(run(17), expected.double(), scale=2)


def test_a_token_outside_the_block_table_is_refused() -> None:
    latents, ropes, table, _ = paged([4], torch.float32)
    q = torch.randn(1, 1, RANK + ROTARY)
    position, request = torch.tensor([4]), torch.tensor([0])
    with pytest.raises(IndexError, match="outside"):
        mla_attention(q[..., :RANK], q[..., RANK:], latents, ropes, table, request, position, 1.0)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("q_rope", {"q_rope": torch.zeros(2, 4, ROTARY)}),
        ("ropes", {"ropes": torch.zeros(3, ROWS + 1, ROTARY)}),
        ("latents", {"latents": torch.zeros(3, ROWS, RANK + 1)}),
        ("position", {"position": torch.zeros(3, dtype=torch.int64)}),
        ("request", {"request": torch.zeros(2)}),
        ("q_latent", {"q_latent": torch.zeros(2, 3, RANK, dtype=torch.int32)}),
        ("block_table", {"block_table": torch.zeros(3, dtype=torch.int64)}),
    ],
)
def test_bad_arguments_are_refused(name: str, broken: dict[str, torch.Tensor]) -> None:
    given = {
        "q_latent": torch.zeros(2, 3, RANK),
        "q_rope": torch.zeros(2, 3, ROTARY),
        "latents": torch.zeros(3, ROWS, RANK),
        "ropes": torch.zeros(3, ROWS, ROTARY),
        "block_table": torch.zeros(1, 2, dtype=torch.int64),
        "request": torch.zeros(2, dtype=torch.int64),
        "position": torch.zeros(2, dtype=torch.int64),
    }
    with pytest.raises(InvalidInputError, match=name):
        mla_attention(**(given | broken), scale=1.0)


@pytest.mark.oracle(
    "ascend_attention::kv_rmsnorm_rope_cache", "brute force with complex numbers in float64"
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_cache_rows_equal_brute_force(
    tokens: int, interleaved: bool, split: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(tokens)
    rank, pairs = 9, 3
    wide = torch.randn(tokens, 4 + rank + 2 * pairs).to(dtype)
    kv, weight, angle = wide[:, 4:], torch.rand(rank) + 0.5, torch.rand(tokens, pairs) * 6
    latents = torch.full((3, 4, rank), 7.0, dtype=dtype)
    ropes = torch.full((3, 4, 2 * pairs), 7.0, dtype=dtype)
    number = torch.randperm(12)[:tokens]
    block, offset = number // 4, number % 4
    block[1:2] = -1
    kv_rmsnorm_rope_cache(
        kv, weight, 1e-6, angle.cos(), angle.sin(), latents, ropes, RowIndex(block, offset),
        interleaved=interleaved, split=split,
    )  # fmt: skip
    latent, rope = kv.double().split([rank, 2 * pairs], dim=-1)
    normed = latent / (latent.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    two = rope.unflatten(-1, (pairs, 2)) if interleaved else rope.unflatten(-1, (2, pairs)).mT
    turned = torch.view_as_complex(two.clone(memory_format=torch.contiguous_format)) * torch.polar(
        torch.ones_like(angle, dtype=torch.float64), angle.double()
    )
    pair = torch.view_as_real(turned)
    turned = (pair if interleaved and not split else pair.mT).flatten(-2)
    written = {int(n) for t, n in enumerate(number) if t != 1}
    for n in range(12):
        if n not in written:
            assert latents[n // 4, n % 4].eq(7).all()
            assert ropes[n // 4, n % 4].eq(7).all()
    for t in range(tokens):
        if t != 1:
            assert_close(latents[block[t], offset[t]], normed[t], scale=2)
            assert_close(ropes[block[t], offset[t]], turned[t], scale=2)


@pytest.mark.parametrize(("block", "offset"), [(3, 0), (0, 4)])
def test_rows_outside_the_caches_write_nothing(block: int, offset: int) -> None:
    latents, ropes = torch.zeros(3, 4, 8), torch.zeros(3, 4, 2)
    index = RowIndex(torch.tensor([0, block]), torch.tensor([0, offset]))
    angle = torch.zeros(2, 1)
    with pytest.raises(IndexError):
        kv_rmsnorm_rope_cache(
            torch.randn(2, 10), torch.ones(8), 1e-6, angle, angle, latents, ropes, index
        )
    assert not latents.any()
    assert not ropes.any()


@pytest.mark.oracle(
    "ascend_attention::merge_attention_states", "attention over the whole context in float64"
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_merged_parts_equal_the_whole(dtype: torch.dtype) -> None:
    """The second part has no token for some heads, and holds NaN there."""
    torch.manual_seed(0)
    tokens, heads, width = 5, 3, 8
    logits = torch.randn(tokens, heads, 20, dtype=torch.float64) * 3
    logits[1, :, 6:14] = float("-inf")
    values = torch.randn(20, width, dtype=torch.float64)
    outs, lses = [], []
    for part in (slice(0, 6), slice(6, 14), slice(14, 20)):
        outs.append(logits[..., part].softmax(-1) @ values[part])
        lses.append(logits[..., part].logsumexp(-1))
    assert outs[1][1].isnan().all()
    got, lse = merge_attention_states(torch.stack(outs).to(dtype), torch.stack(lses).float())
    assert got.dtype == dtype
    assert_close(got, logits.softmax(-1) @ values, scale=2)
    assert_close(lse, logits.logsumexp(-1), scale=4)


def test_no_part_with_a_token_gives_zeros() -> None:
    out, lse = merge_attention_states(
        torch.full((2, 1, 1, 3), NAN), torch.full((2, 1, 1), float("-inf"))
    )
    assert not out.any()
    assert lse.eq(float("-inf")).all()


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="lses"):
        merge_attention_states(torch.zeros(2, 1, 1, 3), torch.zeros(2, 1, 2))
    with pytest.raises(InvalidInputError, match="parts"):
        merge_attention_states(torch.zeros(0, 1, 1, 3), torch.zeros(0, 1, 1))


@pytest.mark.parametrize(
    ("reason", "given"),
    [
        (None, {}),
        (None, {"requests": [(30, 16), (9, 1)], "heads": 128}),
        ("device family A5", {"family": "A5"}),
        ("torch.float32", {"dtype": torch.float32}),
        ("only the device knows", {"host": False}),
        ("rows of 512 \\+ 32", {"rotary": 32}),
        ("3 heads", {"heads": 3}),
        ("blocks of 64", {"rows": 64}),
        ("more tokens than 16", {"requests": [(30, 17)]}),
        ("of no or more", {"requests": [(30, 1), (4, 0)]}),
        ("torch.int64", {"index": torch.int64}),
        ("gaps", {"slab": True}),
    ],
)
def test_limits_of_the_fused_operator(reason: str | None, given: dict[str, Any]) -> None:
    settings = {
        "requests": [(30, 1), (9, 4)], "heads": 4, "rank": 512, "rotary": 64,
        "dtype": torch.bfloat16, "rows": 16, "host": True, "slab": False, "index": torch.int32,
    }  # fmt: skip
    given = settings | given
    facts = FAMILIES[given.pop("family", "A3")]
    support = npu.supports_mla_attention(facts, *step(Inputs("meta"), **given))
    assert bool(support) is (reason is None)
    assert reason is None or re.search(reason, support.reason)


def test_a_prompt_s_rows_are_not_split_however_long_a_context_may_be() -> None:
    """Parts of results are float32 and one of every token and program that shares its rows."""
    kernels = pytest.importorskip("ascend_attention.ops.mla_attention.kernels")
    arguments = step(
        Inputs("meta"), [(4096, 2048)], 8, 512, 64, torch.bfloat16, rows=128, columns=1024
    )
    with device_family("A3"), recorded_launches() as launches:
        kernels.mla_attention(*arguments)
    assert [one.constants["SPLITS"] for one in launches] == [1]


@pytest.mark.parametrize(
    ("reason", "given"),
    [
        (None, {}),
        (None, {"interleaved": False, "split": False, "dtype": torch.float16}),
        ("device family A5", {"family": "A5"}),
        ("interleaved pairs that stay so", {"split": False}),
        ("rows of torch.float32", {"dtype": torch.float32}),
        ("caches of torch.float16", {"cache_dtype": torch.float16}),
        ("rows of 512 \\+ 32", {"rotary": 32}),
        ("blocks of 16", {"rows": 16}),
        ("no tokens", {"tokens": 0}),
        ("more tokens than the 2 blocks", {"tokens": 70}),
        ("gaps", {"slab": True}),
    ],
)
def test_limits_of_the_fused_write(reason: str | None, given: dict[str, Any]) -> None:
    settings = {
        "tokens": 3, "rank": 512, "rotary": 64, "dtype": torch.bfloat16, "blocks": 2, "rows": 32,
        "slab": False, "split": True,
    }  # fmt: skip
    given = settings | given
    facts = FAMILIES[given.pop("family", "A3")]
    support = mla_cache_npu.supports_kv_rmsnorm_rope_cache(facts, *writes(Inputs("meta"), **given))
    assert bool(support) is (reason is None)
    assert reason is None or re.search(reason, support.reason)


def test_lengths_of_another_number_of_requests_are_refused() -> None:
    latents, ropes, table, _ = paged([4], torch.float32)
    q, here = torch.randn(1, 1, RANK + ROTARY), torch.tensor([0])
    given = q[..., :RANK], q[..., RANK:], latents, ropes, table, here, here, 1.0
    with pytest.raises(InvalidInputError, match="2 query_ends and 2 seq_lens"):
        mla_attention(*given, query_ends=[1, 1], seq_lens=[1, 1])
