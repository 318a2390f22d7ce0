"""Split, norm and rotation of a fused QKV projection: transformers, and tensor parallelism."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.linearnorm import (
    npu,
    split_qkv_rmsnorm_mrope,
    split_qkv_rmsnorm_rope,
    split_qkv_tp_apply,
    split_qkv_tp_variance,
)
from ascend_ops_core.testing import assert_close

EPS = 1e-6


def table(positions: int, rotary: int) -> torch.Tensor:
    inverse = 100.0 ** (-2 * torch.arange(rotary // 2) / rotary)
    angle = torch.arange(positions)[:, None] * inverse
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


@pytest.mark.oracle("ascend_ops_core::split_qkv_rmsnorm_rope", "transformers' Qwen3 attention")
@pytest.mark.parametrize("tokens", [0, 1, 3, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_equals_qwen3(tokens: int, dtype: torch.dtype) -> None:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

    torch.manual_seed(tokens)
    qkv = torch.randn(tokens, (4 + 2 * 2) * 16).to(dtype)
    norms = [Qwen3RMSNorm(16, eps=EPS).to(dtype) for _ in range(2)]
    for norm in norms:
        norm.weight.data.normal_()
    positions = torch.randint(0, 50, (tokens,))
    rows = table(50, 16)[positions]
    cos, sin = (half.repeat(1, 2)[None] for half in rows.chunk(2, dim=-1))
    q, k, v = qkv.float().unflatten(-1, (-1, 16)).split([4, 2, 2], dim=1)
    q, k = (norm.float()(x)[None].transpose(1, 2) for norm, x in zip(norms, (q, k), strict=True))
    q, k = (x[0].transpose(0, 1).flatten(1) for x in apply_rotary_pos_emb(q, k, cos, sin))
    weights = [norm.weight.data.to(dtype) for norm in norms]
    got = split_qkv_rmsnorm_rope(
        qkv, table(50, 16), positions, 4, 2, 16, eps=EPS, q_weight=weights[0], k_weight=weights[1]
    )
    assert_close(got.query, q.detach())
    assert_close(got.key, k.detach())
    assert torch.equal(got.value, v.to(dtype).flatten(1))
    assert got.gate.shape == (tokens, 0)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_a_table_of_16_bits_turns_by_its_rounded_values(kind: torch.dtype) -> None:
    qkv, positions, rounded = (
        torch.randn(3, 8 * 16),
        torch.tensor([7, 49, 0]),
        table(50, 16).to(kind),
    )
    got, expected, exact = (
        split_qkv_rmsnorm_rope(qkv, one, positions, 4, 2, 16, eps=EPS)
        for one in (rounded, rounded.float(), table(50, 16))
    )
    assert torch.equal(got.query, expected.query)
    assert torch.equal(got.key, expected.key)
    assert not torch.equal(got.query, exact.query)


@pytest.mark.oracle("ascend_ops_core::split_qkv_rmsnorm_mrope", "pair by pair in Python")
@pytest.mark.parametrize(("sections", "interleaved"), [([3, 3, 2], False), ([4, 2, 2], True)])
def test_mrope_pair_by_pair(sections: list[int], interleaved: bool) -> None:
    qkv, rows = torch.randn(3, 4 * 20), table(50, 16)
    positions = torch.randint(0, 50, (3, 3))
    got = split_qkv_rmsnorm_mrope(
        qkv, rows, positions, sections, 2, 1, 20, eps=EPS, interleaved=interleaved
    )
    for t in range(3):
        for h in range(3):
            x = qkv[t, 20 * h : 20 * h + 20].double()
            x = x / (x.square().mean() + EPS).sqrt()
            wanted = x.clone()
            for i in range(8):
                if interleaved:
                    axis = i % 3 if i % 3 and i // 3 < sections[i % 3] else 0
                else:
                    axis = 0 if i < sections[0] else 1 if i < sections[0] + sections[1] else 2
                c, s = (float(rows[positions[axis, t], i + j]) for j in (0, 8))
                wanted[i] = x[i] * c - x[i + 8] * s
                wanted[i + 8] = x[i + 8] * c + x[i] * s
            part = got.query[t, 20 * h : 20 * h + 20] if h < 2 else got.key[t]
            assert_close(part, wanted)


@pytest.mark.oracle("ascend_ops_core::split_qkv_tp_variance", "the norm of one rank with all heads")
@pytest.mark.oracle("ascend_ops_core::split_qkv_tp_apply", "the norm of one rank with all heads")
@pytest.mark.parametrize(
    ("ranks", "q_heads", "kv_heads"),
    [(1, 6, 2), (2, 6, 2), (3, 6, 3), (5, 10, 5), (4, 8, 2), (16, 16, 8)],
)
def test_shards_equal_one_rank(ranks: int, q_heads: int, kv_heads: int) -> None:
    """Bug case 11: key heads on several ranks must not count twice, and odd numbers of ranks."""
    dim = 8
    qkv = torch.randn(7, (q_heads + 2 * kv_heads) * dim)
    qw, kw = torch.randn(q_heads * dim), torch.randn(kv_heads * dim)
    positions = torch.randint(0, 50, (7,))
    q, k, v = qkv.split([q_heads * dim, kv_heads * dim, kv_heads * dim], dim=-1)
    cos, sin = table(50, dim)[positions].double().chunk(2, dim=-1)

    def whole(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = x.double()
        y = y / (y.square().mean(-1, keepdim=True) + EPS).sqrt() * weight
        first, second = y.unflatten(-1, (-1, dim)).chunk(2, dim=-1)
        c, s = cos[:, None], sin[:, None]
        return torch.cat((first * c - second * s, second * c + first * s), dim=-1).flatten(1)

    replicas = max(1, ranks // kv_heads)
    own_kv, own_q = max(1, kv_heads // ranks), q_heads // ranks
    shards = []
    for rank in range(ranks):
        first_kv = rank // replicas * own_kv
        of_q = slice(rank * own_q * dim, (rank + 1) * own_q * dim)
        of_kv = slice(first_kv * dim, (first_kv + own_kv) * dim)
        shards.append((torch.cat((q[:, of_q], k[:, of_kv], v[:, of_kv]), dim=-1), of_q, of_kv))
    sums = sum(
        split_qkv_tp_variance(shard, own_q, own_kv, dim, kv_replicas=replicas)
        for shard, _, _ in shards
    )
    assert isinstance(sums, torch.Tensor)
    for shard, of_q, of_kv in shards:
        got = split_qkv_tp_apply(
            shard,
            sums,
            table(50, dim),
            positions,
            own_q,
            own_kv,
            dim,
            total_q_heads=q_heads,
            total_kv_heads=kv_heads,
            eps=EPS,
            q_weight=qw[of_q],
            k_weight=kw[of_kv],
        )
        assert_close(got.query, whole(q, qw)[:, of_q])
        assert_close(got.key, whole(k, kw)[:, of_kv])
        assert torch.equal(got.value, v[:, of_kv])


def test_partial_rotation_passes_the_rest_and_gates_stand_beside_queries() -> None:
    qkv = torch.randn(3, (2 * 2 + 2) * 16)
    positions = torch.tensor([1, 2, 3])
    got = split_qkv_rmsnorm_rope(qkv, table(50, 4), positions, 2, 1, 16, eps=EPS, gated=True)
    heads = qkv.unflatten(-1, (-1, 16))
    assert torch.equal(got.gate, torch.cat((heads[:, 1], heads[:, 3]), dim=-1))
    first = heads[:, 2]
    normed = first / (first.square().mean(-1, keepdim=True) + EPS).sqrt()
    assert_close(got.query[:, 20:32], normed[:, 4:])


def test_each_head_is_normed_alone() -> None:
    """Bug case 12: scaling one head leaves the others as they are."""
    qkv = torch.randn(2, 4 * 16)
    scaled = qkv.clone()
    scaled[:, 16:32] *= 100
    rows, positions = table(50, 16), torch.tensor([3, 4])
    one, other = (
        split_qkv_rmsnorm_rope(x, rows, positions, 2, 1, 16, eps=EPS) for x in (qkv, scaled)
    )
    assert torch.equal(one.query[:, :16], other.query[:, :16])
    assert torch.equal(one.key, other.key)


def rope(**changes: object) -> object:
    arguments: dict[str, object] = {
        "qkv": torch.randn(2, 64),
        "cos_sin_cache": table(50, 16),
        "positions": torch.tensor([0, 1]),
        "q_heads": 2,
        "kv_heads": 1,
        "head_dim": 16,
        "eps": EPS,
    }
    return split_qkv_rmsnorm_rope(**(arguments | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"positions": torch.tensor([0, 50])}, "positions 0 to 49"),
        ({"positions": torch.tensor([0, -1])}, "positions 0 to 49"),
        ({"positions": torch.tensor([0.0, 1.0])}, "int32 or int64"),
        ({"positions": torch.tensor([0])}, r"shape \(2,\)"),
        ({"cos_sin_cache": table(50, 18)}, "at most the head size 16"),
        ({"qkv": torch.randn(2, 65)}, r"\[tokens, 64\]"),
        ({"qkv": torch.zeros(2, 64, dtype=torch.int8)}, "float32, bfloat16"),
        ({"kv_heads": 0}, "whole heads|at least 1"),
        ({"q_weight": torch.ones(8)}, r"shape \(16,\)"),
    ],
)
def test_refusals(changes: dict[str, object], limit: str) -> None:
    with pytest.raises(InvalidInputError, match=limit):
        rope(**changes)


def test_refusals_of_sections_and_totals() -> None:
    qkv, rows = torch.randn(2, 64), table(50, 16)
    positions = torch.zeros(3, 2, dtype=torch.int64)
    for sections, interleaved in (([4, 4, 4], False), ([2, 3, 3], True), ([8, 0], False)):
        with pytest.raises(InvalidInputError, match="rotated pairs"):
            split_qkv_rmsnorm_mrope(
                qkv, rows, positions, sections, 2, 1, 16, eps=EPS, interleaved=interleaved
            )
    with pytest.raises(InvalidInputError, match="itself counts"):
        split_qkv_tp_variance(qkv, 2, 1, 16, kv_replicas=0)
    for sums, total in ((torch.zeros(2, 2), 1), (torch.zeros(2, 3), 4)):
        with pytest.raises(InvalidInputError, match=r"alone has|shape \(2, 2\)"):
            split_qkv_tp_apply(
                qkv,
                sums,
                rows,
                positions[0],
                2,
                1,
                16,
                total_q_heads=total,
                total_kv_heads=1,
                eps=EPS,
                q_weight=torch.ones(32),
                k_weight=torch.ones(16),
            )


def test_kernels_take_floats() -> None:
    facts = facts_of("A2")
    for limits in (
        npu.supports_split_qkv_rmsnorm_rope_triton,
        npu.supports_split_qkv_rmsnorm_mrope_triton,
        npu.supports_split_qkv_tp_variance_triton,
        npu.supports_split_qkv_tp_apply_triton,
    ):
        assert limits(facts, torch.empty(1, 8))
        assert "int8" in limits(facts, torch.empty(1, 8, dtype=torch.int8)).reason
