"""References of routing and grouped products against loops written here."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.devices import device_family
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.contract import Contract

pytestmark = pytest.mark.contract


@pytest.fixture(autouse=True)
def _on_cpu(contract: Contract) -> None:
    """Calls of torch.ops.npu on CPU tensors run the references."""


@pytest.mark.parametrize("norm_type", [0, 1], ids=["softmax", "sigmoid"])
def test_gating(norm_type: int) -> None:
    x, bias = torch.randn(9, 11), torch.randn(11)
    weights, ids, norm = torch.ops.npu.npu_moe_gating_top_k(
        x, 4, bias=bias, norm_type=norm_type, out_flag=True, routed_scaling_factor=2.0
    )
    assert ids.dtype == torch.int32
    for t in range(9):
        e = x[t].double().exp()
        scores = e / e.sum() if norm_type == 0 else e / (1 + e)
        order = sorted(range(11), key=lambda i, s=scores: -float(s[i] + bias[i]))[:4]
        assert ids[t].tolist() == order
        chosen = scores[order]
        expected = 2 * (chosen if norm_type == 0 else chosen / chosen.sum())
        torch.testing.assert_close(weights[t].double(), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(norm[t].double(), scores, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", [0, 1], ids=["max", "two"])
def test_gating_within_groups(mode: int) -> None:
    x, bias = torch.randn(9, 20), torch.randn(20)
    weights, ids, _ = torch.ops.npu.npu_moe_gating_top_k(
        x, 4, bias=bias, norm_type=1, group_count=5, k_group=2, group_select_mode=mode
    )
    for t in range(9):
        ranked = (x[t].sigmoid() + bias).tolist()
        best = [sorted(ranked[4 * g : 4 * g + 4])[-1 - mode :] for g in range(5)]
        groups = sorted(range(5), key=lambda g, best=best: -sum(best[g]))[:2]
        within = [e for e in range(20) if e // 4 in groups]
        order = sorted(within, key=lambda e, ranked=ranked: -ranked[e])[:4]
        assert ids[t].tolist() == order
        chosen = x[t].sigmoid()[order]
        torch.testing.assert_close(weights[t], chosen / chosen.sum(), rtol=1e-5, atol=1e-6)


def test_gating_refuses_groups_that_are_not_documented() -> None:
    x = torch.randn(2, 12)
    for groups, k_group, k, message in (
        (5, 1, 1, "5 groups: a divisor of 12"),
        (6, 1, 1, "groups of 2 experts: more than 2"),
        (4, 5, 2, "k_group=5: 1 to 4"),
        (4, 2, 7, "k=7: at most 6"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            torch.ops.npu.npu_moe_gating_top_k(x, k, group_count=groups, k_group=k_group)


def test_gating_refuses_what_is_not_documented() -> None:
    x = torch.randn(2, 8)
    with pytest.raises(InvalidInputError, match=r"bias of torch.float16"):
        torch.ops.npu.npu_moe_gating_top_k(x, 2, bias=torch.zeros(8).half())
    with pytest.raises(InvalidInputError, match="norm_type=2"):
        torch.ops.npu.npu_moe_gating_top_k(x, 2, norm_type=2)
    with pytest.raises(InvalidInputError, match="renorm=1"):
        torch.ops.npu.npu_moe_gating_top_k(x, 2, renorm=1)
    with device_family("A5"), pytest.raises(InvalidInputError, match="on A5"):
        torch.ops.npu.npu_moe_gating_top_k(x, 2, norm_type=0)


def _routed(x: torch.Tensor, ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, ...]:
    result: tuple[torch.Tensor, ...] = torch.ops.npu.npu_moe_init_routing_v2(
        x,
        ids,
        expert_num=experts,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        active_expert_range=[0, experts],
    )
    return result


def test_routing_and_grouped_product_visit_every_expert() -> None:
    x, weight = torch.randn(7, 5), torch.randn(6, 5, 3)
    ids = torch.randint(0, 6, (7, 2), dtype=torch.int32)
    rows, positions, counts, _ = _routed(x, ids, 6)
    assert counts.tolist() == [int((ids == e).sum()) for e in range(6)]
    given = {"split_item": 2, "group_type": 0}
    for transposed in (False, True):
        one = weight.transpose(1, 2).contiguous().transpose(1, 2) if transposed else weight
        for kind, groups in ((1, counts), (0, counts.cumsum(0))):
            (out,) = torch.ops.npu.npu_grouped_matmul(
                [rows], [one], group_list=groups, group_list_type=kind, **given
            )
            for t in range(7):
                for j in range(2):
                    place = int(positions[2 * t + j])
                    assert torch.equal(rows[place], x[t])
                    expected = x[t] @ weight[int(ids[t, j])]
                    torch.testing.assert_close(out[place], expected, rtol=1e-5, atol=1e-5)


def test_routing_and_grouped_product_refuse_what_is_not_documented() -> None:
    x, weight = torch.randn(3, 5), torch.randn(2, 5, 3)
    with pytest.raises(InvalidInputError, match=r"expert_idx of torch.int64"):
        _routed(x, torch.zeros(3, 1, dtype=torch.int64), 2)
    with pytest.raises(InvalidInputError, match="an expert id"):
        _routed(x, torch.full((3, 1), 2, dtype=torch.int32), 2)
    given = {"split_item": 2, "group_type": 0, "group_list_type": 1}
    with pytest.raises(InvalidInputError, match=r"group_list=.*sum to 3"):
        torch.ops.npu.npu_grouped_matmul([x], [weight], group_list=torch.tensor([1, 1]), **given)
    with pytest.raises(InvalidInputError, match="sizes of one group"):
        torch.ops.npu.npu_grouped_matmul([x], [weight[:1]], group_list=torch.tensor([3]), **given)
    with pytest.raises(InvalidInputError, match=r"weight of torch.float16"):
        torch.ops.npu.npu_grouped_matmul(
            [x], [weight.half()], group_list=torch.tensor([1, 2]), **given
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(4, 1024)}, "rows of torch.float32"),
        ({"x": torch.zeros(4, 1000).half()}, "size 1000"),
        ({"expert_ids": torch.zeros(4, 1).long()}, "expert_ids of torch.int64"),
        ({"expert_ids": torch.tensor([[3, 3]] * 4).int()}, "they are different experts"),
        ({"expert_ids": torch.tensor([[3, 8]] * 4).int()}, "an expert id: 0 to 7"),
        ({"ep_world_size": 1}, "1 ranks"),
        ({"moe_expert_num": 7}, "7 experts on 2 ranks"),
        ({"x_active_mask": torch.tensor([True, False, True, True])}, "true values before"),
        ({"expert_scales": torch.ones(4, 2)}, "expert_scales: given on A2 alone"),
        ({"quant_mode": 2}, "quant_mode: not modelled"),
        ({"global_bs": 5}, "global_bs=5: 0 or 8"),
    ],
)
def test_distribution_refuses_what_is_not_documented(
    change: dict[str, object], message: str
) -> None:
    """What it exchanges is compared over processes in the tests of ascend-fused-moe."""
    given = {
        "x": torch.zeros(4, 1024).half(),
        "expert_ids": torch.tensor([[0, 5]] * 4).int(),
        "group_ep": "none",
        "ep_world_size": 2,
        "ep_rank_id": 0,
        "moe_expert_num": 8,
        **change,
    }
    with device_family("A3"), pytest.raises(InvalidInputError, match=message):
        torch.ops.npu.npu_moe_distribute_dispatch_v2(**given)
