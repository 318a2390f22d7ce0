"""What the stages of a layer refuse, and its plans."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_fused_moe.communication import AllGatherCommImpl, AlltoAllCommImpl
from ascend_fused_moe.dispatchers import TokenDispatcherWithAllGather
from ascend_fused_moe.expert_partition import ExpertPartition
from ascend_fused_moe.experts_mlp import StackedExpertsMlp, experts_of_rows
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.groups import ParallelGroups, SingleRank, single_rank
from ascend_fused_moe.permutation import permute, unpermute
from ascend_fused_moe.pipeline import FusedExpertsResult, MoERouterInput, MoETokenDispatchInput
from ascend_fused_moe.routers import AscendFusedTopKRouter
from ascend_fused_moe.runner import (
    AscendGateLinear,
    AscendMoERunner,
    AscendSharedExperts,
    SharedExpertParallelMode,
)
from ascend_fused_moe.runner.plans import AFTER_ONE_ANOTHER, ALONE, OVERLAPPED
from ascend_fused_moe.testing.processes import RankProcesses
from ascend_ops_core import InvalidInputError
from ascend_ops_core.overlap import MAIN, missing_orders

ALONE_GROUPS = single_rank()


class Place(SingleRank):
    """A group of several ranks that is only asked for its sizes."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank_in_group = rank
        self.world_size = size


def runner(**options: Any) -> AscendMoERunner:
    method = AllGatherCommImpl(
        options.pop("groups", ALONE_GROUPS),
        ExpertPartition(4, 1),
        sequence_parallel=options.pop("sequence_parallel", False),
    )
    mlp = StackedExpertsMlp(torch.randn(4, 6, 5), torch.randn(4, 5, 3))
    return AscendMoERunner(AscendFusedTopKRouter(4, 2), mlp, method, **options)


@pytest.mark.parametrize("plan", [ALONE, AFTER_ONE_ANOTHER, OVERLAPPED])
def test_plans_order_all_that_streams_share(plan: Any) -> None:
    assert missing_orders(plan) == []


def test_each_event_of_the_overlap_is_needed() -> None:
    waiting = [i for i, task in enumerate(OVERLAPPED.tasks) if task.waits]
    assert len(waiting) == 2
    for i in waiting:
        tasks = list(OVERLAPPED.tasks)
        tasks[i] = replace(tasks[i], waits=())
        assert missing_orders(replace(OVERLAPPED, tasks=tuple(tasks)))


def test_what_ranks_exchange_stays_on_the_main_stream() -> None:
    elsewhere = {task.name for task in OVERLAPPED.tasks if task.stream != MAIN}
    assert elsewhere == {"shared part 1", "shared part 2"}


@pytest.mark.parametrize("name", ["router_logits", "token_ids", "active"])
def test_inputs_have_the_same_rows(name: str) -> None:
    given = {
        "hidden_states": torch.zeros(3, 5),
        "router_logits": torch.zeros(3, 4),
        "token_ids": torch.zeros(3).long(),
        "active": torch.ones(3).bool(),
    }
    assert MoERouterInput(**given).tokens == 3
    with pytest.raises(InvalidInputError, match=rf"{name} of 2 rows: hidden_states has 3\."):
        MoERouterInput(**{**given, name: given[name][:2]})
    with pytest.raises(InvalidInputError, match=r"active of torch.uint8.*bool"):
        MoERouterInput(**{**given, "active": torch.ones(3, dtype=torch.uint8)})


def test_what_is_dispatched_fits_together() -> None:
    x, weights, ids = torch.zeros(3, 5), torch.zeros(3, 2), torch.zeros(3, 2).long()
    for change in ({"weights": weights[:2]}, {"ids": ids[:, :1]}, {"hidden_states": x[:2]}):
        with pytest.raises(InvalidInputError, match=r"\[N, k\] with N=\d"):
            MoETokenDispatchInput(**{"hidden_states": x, "weights": weights, "ids": ids, **change})
    with pytest.raises(InvalidInputError, match=r"ids of torch.float32.*int32, int64"):
        MoETokenDispatchInput(x, weights, weights)
    with pytest.raises(InvalidInputError, match=r"active \[2\]: there are 3 rows"):
        MoETokenDispatchInput(x, weights, ids, torch.ones(2).bool())


def test_an_idle_rank_launches_nothing() -> None:
    """Bug case 1: shapes are kept, and the experts are not called."""
    results: list[FusedExpertsResult] = []
    layer = runner(observe=results.append)
    layer.mlp = None  # type: ignore[assignment]
    out = layer(torch.zeros(0, 5), torch.zeros(0, 4))
    assert out.shape == (0, 5)
    assert [one.group_list.values.tolist() for one in results] == [[0, 0, 0, 0]]


def test_rows_beyond_a_list_are_the_last_experts() -> None:
    counts = GroupList(torch.tensor([2, 0, 1]), GroupListKind.COUNTS)
    for given in (counts, counts.cumulative()):
        assert experts_of_rows(given, 5).tolist() == [0, 0, 2, 2, 2]
        assert experts_of_rows(given, 0).tolist() == []


def test_permutation_there_and_back() -> None:
    ids = torch.tensor([[2, 0], [-1, 2], [5, -3], [0, 0]])
    x = torch.arange(4.0).view(4, 1)
    rows, index, counts = permute(x, ids, 3)
    assert rows.flatten().tolist() == [0, 3, 3, 0, 1]
    assert counts.tolist() == [3, 0, 2]
    assert index.tolist() == [[3, 0], [-1, 4], [-1, -1], [1, 2]]
    weights = torch.tensor([[1.0, 10.0], [float("nan"), 2.0], [float("nan")] * 2, [1.0, 4.0]])
    assert unpermute(rows, index, weights).flatten().tolist() == [0, 2, 0, 15]


def test_a_row_that_is_not_meant_may_hold_anything() -> None:
    rows = torch.tensor([[float("nan")], [2.0]])
    index = torch.tensor([[1, -1]])
    assert unpermute(rows, index, torch.ones(1, 2)).tolist() == [[2.0]]


def test_ids_of_another_rank_and_none_are_dropped() -> None:
    dispatcher = TokenDispatcherWithAllGather(rank=1, capacity=2)
    ids = torch.tensor([[-1, 0], [1, 2], [3, 4]])
    given = MoETokenDispatchInput(torch.arange(3.0).view(3, 1), torch.ones(3, 2), ids)
    out = dispatcher.token_dispatch(given)
    assert out.rows.flatten().tolist() == [1, 2]
    assert out.group_list.values.tolist() == [1, 1]


def test_groups_that_do_not_fit() -> None:
    with pytest.raises(InvalidInputError, match=r"over 3 ranks: the layer has 2 x 2 ranks"):
        ParallelGroups(Place(0, 2), Place(0, 2), Place(0, 3))
    with pytest.raises(InvalidInputError, match=r"rank 1: part 1, place 0 make it 2"):
        ParallelGroups(Place(0, 2), Place(1, 2), Place(1, 4))
    groups = ParallelGroups(Place(1, 2), Place(1, 2), Place(3, 4))
    assert (groups.ranks, groups.rank, groups.expert_parallel) == (4, 3, True)


def test_ways_of_communication_that_do_not_fit() -> None:
    with pytest.raises(InvalidInputError, match=r"experts on 2 ranks: there are 1"):
        AllGatherCommImpl(ALONE_GROUPS, ExpertPartition(4, 2))
    with pytest.raises(InvalidInputError, match=r"'all_to_all' with experts on one rank"):
        AlltoAllCommImpl(ALONE_GROUPS, ExpertPartition(4, 1))


def test_tokens_that_are_not_those_of_the_step() -> None:
    layer = runner()
    with pytest.raises(InvalidInputError, match=r"tokens of 2 parts: there are 1"):
        layer(torch.zeros(3, 5), torch.zeros(3, 4), tokens=(3, 1))
    with pytest.raises(InvalidInputError, match=r"3 rows on rank 0 of part 0: tokens=\[4\]"):
        layer(torch.zeros(3, 5), torch.zeros(3, 4), tokens=(4,))
    groups = ParallelGroups(Place(2, 3), SingleRank(), SingleRank())
    shared_out = runner(groups=groups, sequence_parallel=True)
    with pytest.raises(InvalidInputError, match=r"2 rows on rank 2.*leaves it 1\."):
        shared_out(torch.zeros(2, 5), torch.zeros(2, 4), tokens=(7,))


def test_logits_come_from_one_place() -> None:
    with pytest.raises(InvalidInputError, match="no router_logits and no gate"):
        runner()(torch.zeros(3, 5))
    gate = AscendGateLinear(5, 4, torch.float32)
    torch.nn.init.normal_(gate.weight)
    layer = runner(gate=gate)
    assert layer.is_internal_router
    x = torch.randn(3, 5)
    with pytest.raises(InvalidInputError, match="router_logits and gate"):
        layer(x, torch.zeros(3, 4))
    layer.gate = None
    expected = layer(x, x @ gate.weight.T)
    layer.gate = gate
    torch.testing.assert_close(layer(x), expected)


def test_gate_scores_in_the_dtype_that_is_asked() -> None:
    gate = AscendGateLinear(5, 4, torch.bfloat16, torch.float32)
    torch.nn.init.normal_(gate.weight)
    x = torch.randn(3, 5)
    got = gate(x)
    assert got.dtype == torch.float32
    expected = x.bfloat16().float() @ gate.weight.float().T
    torch.testing.assert_close(got, expected, rtol=2**-6, atol=2**-6)
    assert gate(x[:0]).shape == (0, 4)


def test_chunks_need_whole_tokens() -> None:
    with pytest.raises(InvalidInputError, match="dp_chunk_tokens=0"):
        runner(dp_chunk_tokens=0)
    with pytest.raises(InvalidInputError, match=r"dp_chunk_tokens=4 with sequence parallelism"):
        runner(dp_chunk_tokens=4, sequence_parallel=True)
    assert not runner().use_dp_chunking
    assert runner(dp_chunk_tokens=4).use_dp_chunking


def test_shared_experts_that_do_not_fit() -> None:
    mode = SharedExpertParallelMode
    w13, w2 = torch.zeros(6, 5), torch.zeros(5, 3)
    for bad in ((w13[:5], w2), (w13, w2[:, :2]), (w13, w2[:4])):
        with pytest.raises(InvalidInputError, match=re.escape("[2S, H] and [H, S]")):
            AscendSharedExperts(*bad, ALONE_GROUPS, mode.REPLICATED)
    groups = ParallelGroups(Place(0, 2), SingleRank(), SingleRank())
    with pytest.raises(InvalidInputError, match="'tensor_parallel': the ranks share"):
        AscendSharedExperts(w13, w2, groups, mode.TENSOR_PARALLEL, sequence_parallel=True)
    with pytest.raises(InvalidInputError, match="'sequence_parallel': the ranks have all"):
        AscendSharedExperts(w13, w2, groups, mode.SEQUENCE_PARALLEL)
    shared = AscendSharedExperts(w13, w2, ALONE_GROUPS, mode.REPLICATED, sequence_parallel=True)
    with pytest.raises(InvalidInputError, match="sequence_parallel=True: the routed ones"):
        runner(shared_experts=shared)


def test_a_rank_that_fails_ends_all(tmp_path: Path) -> None:
    file = tmp_path / "failing.py"
    file.write_text("def fail(): raise ValueError('this rank cannot')\ndef fine(): return 3\n")
    with RankProcesses(1, file) as ranks:
        assert ranks.call("fine") == [3]
        with pytest.raises(RuntimeError, match=r"(?s)rank 0: .*this rank cannot"):
            ranks.call("fail")
        with pytest.raises(RuntimeError, match="ended by an earlier failure"):
            ranks.call("fine")
