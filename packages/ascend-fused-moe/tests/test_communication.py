"""Which way of communication a step takes, and what MC2 refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from ascend_fused_moe.communication import (
    AllGatherCommImpl,
    AlltoAllCommImpl,
    CommLayer,
    FusedMC2CommImpl,
    MC2CommImpl,
    MoECommMethods,
    MoECommType,
    select_moe_comm_method,
)
from ascend_fused_moe.dispatchers import TokenDispatcherWithMC2
from ascend_fused_moe.expert_partition import ExpertPartition
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.groups import ParallelGroups, SingleRank
from ascend_fused_moe.pipeline import FusedExpertsResult, MoETokenDispatchInput
from ascend_ops_core import InvalidInputError
from ascend_ops_core.devices import facts_of

A2, A3, A5 = facts_of("A2"), facts_of("A3"), facts_of("A5")
LAYER = CommLayer(7168, 8, 256, torch.bfloat16, ranks=16, sharing=2, facts=A3)
FUSED, MC2 = MoECommType.FUSED_MC2, MoECommType.MC2
ALLTOALL, ALLGATHER = MoECommType.ALLTOALL, MoECommType.ALLGATHER


class Ranks(SingleRank):
    """A group that is only asked for its sizes."""

    def __init__(self, size: int) -> None:
        self.world_size = size
        self.name = f"of {size}"


@pytest.mark.parametrize(
    ("changed", "tokens", "kind", "reasons"),
    [
        ({}, 1024, MC2, ["no operator that fuses"]),
        ({}, 0, MC2, ["no operator that fuses"]),
        ({"fused_operator": True}, 1024, FUSED, []),
        ({}, 1025, ALLTOALL, ["no operator", "513 rows on a rank, .* take 512 on A3"]),
        ({"sharing": 1}, 513, ALLTOALL, ["no operator", "513 rows"]),
        ({"captured": True}, 1025, ALLGATHER, ["no", "513 rows", "the host waits"]),
        ({"facts": A2}, 512, MC2, ["no operator"]),
        ({"facts": A2}, 513, ALLTOALL, ["no", "257 rows on a rank, .* take 256 on A2"]),
        ({"facts": A2, "ranks": 8}, 8, ALLTOALL, ["no", "8 ranks, .* take 16, 32, 64 on A2"]),
        ({"facts": A2, "experts": 512}, 8, ALLTOALL, ["no", "32 experts on a rank"]),
        ({"facts": A2, "hidden": 100}, 8, ALLTOALL, ["no", "size 100, .* in steps of 32 on A2"]),
        ({"facts": A5}, 8, ALLTOALL, ["no", "A5, .* documented for A2, A3"]),
        ({"facts": facts_of("310P")}, 8, ALLTOALL, ["no", "310P"]),
        ({"hidden": 8192}, 8, ALLTOALL, ["no", "hidden size 8192, .* 1024 to 7168 on A3"]),
        ({"hidden": 512}, 8, ALLTOALL, ["no", "hidden size 512"]),
        ({"top_k": 17}, 8, ALLTOALL, ["no", "17 experts of a row"]),
        ({"experts": 520}, 8, ALLTOALL, ["no", "528 places for experts, .* take 512"]),
        ({"dtype": torch.float32}, 8, ALLTOALL, ["no", "rows of torch.float32"]),
        ({"facts": None}, 8, ALLTOALL, ["a CPU", "a CPU"]),
        ({"ranks": 1}, 8, ALLGATHER, ["on one rank"] * 3),
        ({"forced": ALLGATHER}, 8, ALLGATHER, []),
        ({"forced": ALLTOALL}, 8, ALLTOALL, []),
    ],
)
def test_choice(
    changed: dict[str, Any], tokens: int, kind: MoECommType, reasons: list[str]
) -> None:
    choice = select_moe_comm_method(replace(LAYER, **changed), tokens)
    assert choice.kind is kind
    assert len(choice.refused) == len(reasons)
    for (_, found), reason in zip(choice.refused, reasons, strict=True):
        assert re.search(reason, found)


def test_a_way_that_is_forced_and_cannot_be_taken() -> None:
    forced = replace(LAYER, forced=MC2)
    assert select_moe_comm_method(forced, 8).kind is MC2
    with pytest.raises(InvalidInputError, match=r"'mc2': 513 rows on a rank"):
        select_moe_comm_method(forced, 1026)
    with pytest.raises(InvalidInputError, match=r"'all_to_all': captured graphs"):
        select_moe_comm_method(replace(LAYER, forced=ALLTOALL, captured=True), 8)
    with pytest.raises(InvalidInputError, match=r"'fused_mc2': no operator that fuses"):
        select_moe_comm_method(replace(LAYER, forced=FUSED), 8)


def groups(ranks: int = 16, tp: int = 2) -> ParallelGroups:
    return ParallelGroups(Ranks(tp), Ranks(ranks // tp), Ranks(ranks))


def test_ways_are_made_once_and_as_chosen() -> None:
    methods = MoECommMethods(LAYER, groups(), ExpertPartition(256, 16))
    assert type(methods.for_tokens(8)) is MC2CommImpl
    assert type(methods.for_tokens(4096)) is AlltoAllCommImpl
    assert methods.for_tokens(8) is methods.for_tokens(64)
    captured = replace(LAYER, captured=True)
    captured_methods = MoECommMethods(captured, groups(), ExpertPartition(256, 16))
    assert type(captured_methods.for_tokens(4096)) is AllGatherCommImpl
    with pytest.raises(InvalidInputError, match=r"\(16, 2, 256\).*\(16, 4, 256\)"):
        MoECommMethods(LAYER, groups(tp=4), ExpertPartition(256, 16))


def dispatched(rows: int = 4, hidden: int = 1024, device: str = "cpu") -> MoETokenDispatchInput:
    return MoETokenDispatchInput(
        torch.zeros(rows, hidden, dtype=torch.bfloat16, device=device),
        torch.zeros(rows, 2, device=device),
        torch.zeros(rows, 2, dtype=torch.int64, device=device),
    )


def test_mc2_is_refused_on_a_cpu() -> None:
    dispatcher = TokenDispatcherWithMC2(Ranks(16), 4)
    with pytest.raises(InvalidInputError, match=r"'mc2' of rows on 'cpu'.*'all_to_all'"):
        dispatcher.token_dispatch(dispatched())


def test_mc2_finds_a_group_that_was_made_anew() -> None:
    group = Ranks(16)
    dispatcher = TokenDispatcherWithMC2(group, 4)
    group.name = "made anew"
    dispatcher.refresh_hccl_group()
    arguments = dispatcher._everywhere(global_rows=64)
    assert arguments["group_ep"] == "made anew"
    assert (arguments["moe_expert_num"], arguments["global_bs"]) == (64, 64)


def test_fused_mc2_needs_an_operator() -> None:
    partition = ExpertPartition(64, 16)
    with pytest.raises(InvalidInputError, match=r"'fused_mc2': torch_npu has no operator"):
        FusedMC2CommImpl(groups(), partition)
    calls = []

    def operator(given: MoETokenDispatchInput, mlp: Any) -> FusedExpertsResult:
        calls.append((given, mlp))
        counts = GroupList(torch.zeros(4, dtype=torch.int64), GroupListKind.COUNTS)
        return FusedExpertsResult(given.hidden_states, counts)

    method = FusedMC2CommImpl(groups(), partition, operator=operator)
    given = dispatched()
    assert method.fused_experts(given, None).routed_out is given.hidden_states  # type: ignore[arg-type]
    assert calls == [(given, None)]
    layer = replace(LAYER, experts=64, fused_operator=True)
    methods = MoECommMethods(layer, groups(), partition, operator=operator)
    assert type(methods.for_tokens(8)) is FusedMC2CommImpl
