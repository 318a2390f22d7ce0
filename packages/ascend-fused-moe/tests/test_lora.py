"""Adapters of experts against experts whose weights they were merged into, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from ascend_fused_moe.communication import AllGatherCommImpl, AlltoAllCommImpl, MC2CommImpl
from ascend_fused_moe.expert_partition import ExpertPartition
from ascend_fused_moe.experts_mlp import StackedExpertsMlp
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.groups import ParallelGroups, SingleRank, single_rank
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_fused_moe.mlp import Activation, ActivationKind, MoELoRAContext, RowsLoRA
from ascend_fused_moe.quant_params import build_quant_params
from ascend_fused_moe.routers import AscendFusedTopKRouter
from ascend_fused_moe.runner import AscendMoERunner
from ascend_fused_moe.testing.quantized import quantized_weight
from ascend_ops_core import InvalidInputError
from ascend_ops_core.testing import assert_close
from ascend_ops_core.testing.simulated_group import SimulatedGroup, on_grid

EXPERTS, HIDDEN, INTER, RANK, LORAS, TOP_K = 5, 32, 64, 4, 3, 2
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def weights() -> dict[str, torch.Tensor]:
    return {
        "w13": torch.randn(EXPERTS, 2 * INTER, HIDDEN) / HIDDEN**0.5,
        "w2": torch.randn(EXPERTS, HIDDEN, INTER) / INTER**0.5,
    }


def adapters(mapping: torch.Tensor, *, shared: bool = False, one: bool = False) -> MoELoRAContext:
    """Of all experts; ``one``: gate and up in one stack."""
    a_places, outputs = (1 if shared else EXPERTS), (2 * INTER if one else INTER)
    count = 1 if one else 2
    return MoELoRAContext(
        tuple(torch.randn(LORAS, a_places, RANK, HIDDEN) / 4 for _ in range(count)),
        tuple(torch.randn(LORAS, EXPERTS, outputs, RANK) / 4 for _ in range(count)),
        (torch.randn(LORAS, EXPERTS, RANK, INTER) / 4,),
        (torch.randn(LORAS, a_places, HIDDEN, RANK) / 4,),
        mapping,
    )


def of_places(context: MoELoRAContext, held: Sequence[int], capacity: int) -> MoELoRAContext:
    """A rank's part; places without an expert have numbers, too."""

    def cut(stack: torch.Tensor) -> torch.Tensor:
        if stack.shape[1] == 1:
            return stack
        part = torch.full((LORAS, capacity, *stack.shape[2:]), 7.0)
        part[:, : len(held)] = stack[:, list(held)]
        return part

    stacks = (
        tuple(cut(one) for one in getattr(context, f"{name}_stacked"))
        for name in ("w13_lora_a", "w13_lora_b", "w2_lora_a", "w2_lora_b")
    )
    return MoELoRAContext(*stacks, context.token_lora_mapping)


def merged(
    given: dict[str, torch.Tensor], context: MoELoRAContext, lora: int, expert: int, oai: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of one expert with one adapter in them."""
    w13, w2 = given["w13"][expert].clone(), given["w2"][expert].clone()
    if lora < 0:
        return w13, w2

    def product(b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return b[lora, expert % b.shape[1]] @ a[lora, expert % a.shape[1]]

    a13, b13 = context.w13_lora_a_stacked, context.w13_lora_b_stacked
    parts = [product(b, a) for a, b in zip(a13, b13, strict=True)]
    if len(parts) == 1:
        w13 += parts[0]
    elif oai:
        w13[::2] += parts[0]
        w13[1::2] += parts[1]
    else:
        w13[:INTER] += parts[0]
        w13[INTER:] += parts[1]
    w2 += product(context.w2_lora_b_stacked[0], context.w2_lora_a_stacked[0])
    return w13, w2


def brute_force(
    x: torch.Tensor,
    given: dict[str, torch.Tensor],
    context: MoELoRAContext,
    scores: torch.Tensor,
    ids: torch.Tensor,
    activation: Activation,
) -> torch.Tensor:
    out = torch.zeros_like(x)
    for token, lora in enumerate(context.token_lora_mapping.tolist()):
        for score, expert in zip(scores[token], ids[token].tolist(), strict=True):
            oai = activation.kind is ActivationKind.SWIGLU_OAI
            w13, w2 = merged(given, context, lora, expert, oai)
            hidden = activation((w13 @ x[token]).unsqueeze(0))[0]
            out[token] += score * (w2 @ hidden)
    return out


def layer_of(
    given: dict[str, torch.Tensor], activation: Activation, **ranks: int
) -> AscendRoutedExperts:
    made = AscendRoutedExperts(
        EXPERTS, HIDDEN, INTER, torch.float32, activation=activation, **ranks
    )
    for expert in range(EXPERTS):
        for part in ("w13", "w2"):
            made.load_expert(expert, part, given[part][expert])
    made.process_weights_after_loading()
    return made


@pytest.mark.parametrize("tokens", [0, 1, 9])
@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
@pytest.mark.parametrize(
    ("kind", "one"),
    [
        (ActivationKind.SWIGLU, False),
        (ActivationKind.SWIGLU, True),
        (ActivationKind.SWIGLU_OAI, False),
    ],
)
def test_outputs_are_those_of_merged_weights(
    tokens: int, shared: bool, kind: ActivationKind, one: bool
) -> None:
    """Tokens with different adapters and without one, in one batch."""
    activation, given = Activation(kind, limit=2.0), weights()
    context = adapters(torch.arange(tokens) % (LORAS + 1) - 1, shared=shared, one=one)
    x, logits = torch.randn(tokens, HIDDEN), torch.randn(tokens, EXPERTS)
    router = AscendFusedTopKRouter(EXPERTS, TOP_K)
    layer = AscendMoERunner(
        router,
        layer_of(given, activation),
        AllGatherCommImpl(single_rank(), ExpertPartition(EXPERTS, 1)),
    )
    plain = layer(x, logits)
    layer.set_lora_context(context)
    probabilities = logits.softmax(-1)
    scores, ids = probabilities.topk(TOP_K)
    expected = brute_force(
        x, given, context, scores / scores.sum(-1, keepdim=True), ids, activation
    )
    torch.testing.assert_close(layer(x, logits), expected, **TOLERANCE)
    without = context.token_lora_mapping < 0
    torch.testing.assert_close(plain[without], expected[without], **TOLERANCE)
    layer.set_lora_context(None)
    assert torch.equal(layer(x, logits), plain)


@pytest.mark.parametrize("way", [AllGatherCommImpl, AlltoAllCommImpl])
@pytest.mark.parametrize("tokens", [[4, 7], [0, 5], [1, 0]], ids=str)
def test_adapters_travel_with_their_tokens(way: Any, tokens: list[int]) -> None:
    """Two replicas, whose experts lie on both; five experts do not divide."""
    activation, given = Activation(), weights()
    router = AscendFusedTopKRouter(EXPERTS, TOP_K)
    x, logits = torch.randn(sum(tokens), HIDDEN), torch.randn(sum(tokens), EXPERTS)
    context = adapters(torch.arange(sum(tokens)) % (LORAS + 1) - 1)
    alone = AscendMoERunner(
        router,
        layer_of(given, activation),
        AllGatherCommImpl(single_rank(), ExpertPartition(EXPERTS, 1)),
    )
    alone.set_lora_context(context)
    expected = alone(x, logits).split(tokens)

    def one(row: SimulatedGroup, column: SimulatedGroup, everyone: SimulatedGroup) -> Any:
        rank = column.rank_in_group
        groups = ParallelGroups(SingleRank(), column, everyone)
        partition = ExpertPartition(EXPERTS, 2)
        held = partition.experts_of(rank)
        mine = of_places(context, held, partition.capacity)
        here = slice(sum(tokens[:rank]), sum(tokens[: rank + 1]))
        layer = AscendMoERunner(
            router,
            layer_of(given, activation, ep_rank=rank, ep_ranks=2),
            way(groups, partition),
        )
        layer.set_lora_context(replace(mine, token_lora_mapping=context.token_lora_mapping[here]))
        return layer(x[here], logits[here])

    for got, wanted in zip(on_grid(2, 1, one), expected, strict=True):
        torch.testing.assert_close(got, wanted, **TOLERANCE)


def test_slices_of_experts_sum_up_to_whole_ones() -> None:
    """Tensor parallelism: parts of the channels, with their parts of the adapters."""
    activation, given = Activation(limit=2.0), weights()
    rows = torch.randn(6, HIDDEN)
    groups = GroupList(torch.tensor([2, 0, 3, 1, 0]), GroupListKind.COUNTS)
    context = adapters(torch.zeros(0, dtype=torch.int64))
    of_rows = torch.tensor([0, -1, 2, 1, 1, 0])
    whole = layer_of(given, activation)(rows, groups, RowsLoRA(context, of_rows))
    total = torch.zeros_like(whole)
    for rank in (0, 1):
        here = slice(rank * INTER // 2, (rank + 1) * INTER // 2)
        part = replace(
            context,
            w13_lora_b_stacked=tuple(b[:, :, here] for b in context.w13_lora_b_stacked),
            w2_lora_a_stacked=(context.w2_lora_a_stacked[0][..., here],),
        )
        layer = layer_of(given, activation, tp_rank=rank, tp_ranks=2)
        total += layer(rows, groups, RowsLoRA(part, of_rows))
    torch.testing.assert_close(total, whole, **TOLERANCE)


def test_quantised_experts_take_float_adapters() -> None:
    """What an adapter adds is not quantised: of zero it changes nothing but the rounding."""
    layer = AscendRoutedExperts(
        EXPERTS, HIDDEN, INTER, torch.float32, quant=build_quant_params("w8a8")
    )
    given = weights()
    for expert in range(EXPERTS):
        for part in ("w13", "w2"):
            value, scale = quantized_weight(given[part][expert : expert + 1], "int8")
            layer.load_expert(expert, part, value[0])
            layer.load_expert(expert, f"{part}_scale", scale[0])
    layer.process_weights_after_loading()
    rows = torch.randn(6, HIDDEN)
    groups = GroupList(torch.tensor([2, 0, 3, 1, 0]), GroupListKind.COUNTS)
    context = adapters(torch.zeros(0, dtype=torch.int64))
    of_rows = torch.tensor([0, -1, 2, 1, 1, 0])
    got = layer(rows, groups, RowsLoRA(context, of_rows))
    expected = torch.empty_like(rows)
    for row, expert in enumerate([0, 0, 2, 2, 2, 3]):
        w13, w2 = merged(given, context, int(of_rows[row]), expert, False)
        expected[row] = w2 @ Activation()((w13 @ rows[row]).unsqueeze(0))[0]
    error = (got - expected).norm() / expected.norm()
    plain = layer(rows, groups)
    assert 0 < error < 0.03
    assert_close(got[1], plain[1])
    assert (got[0] - plain[0]).norm() > 0.1 * plain[0].norm()


def test_what_takes_no_adapters_says_so() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    context = adapters(none)
    rows = torch.randn(1, HIDDEN)
    groups = GroupList(torch.tensor([1, 0, 0, 0, 0]), GroupListKind.COUNTS)
    lora = RowsLoRA(context, torch.zeros(1, dtype=torch.int64))
    given = weights()
    stacked = StackedExpertsMlp(given["w13"], given["w2"])
    with pytest.raises(InvalidInputError, match=r"StackedExpertsMlp.*AscendRoutedExperts"):
        stacked(rows, groups, lora)
    layer = layer_of(given, Activation())
    layer.init_eplb(torch.zeros(EXPERTS, dtype=torch.int32))
    with pytest.raises(InvalidInputError, match=r"balanced by load.*without load balancing"):
        layer(rows, groups, lora)
    with pytest.raises(InvalidInputError, match=r"each row has one"):
        layer_of(given, Activation())(rows, groups, RowsLoRA(context, none))


class Pair(SingleRank):
    """One of two ranks, whose neighbour nobody asks for anything."""

    world_size = 2


def test_mc2_carries_no_adapters() -> None:
    """Said before a row is sent, so that no rank waits for another."""
    way = MC2CommImpl(ParallelGroups(Pair(), SingleRank(), Pair()), ExpertPartition(EXPERTS, 2))
    layer = AscendMoERunner(
        AscendFusedTopKRouter(EXPERTS, TOP_K), layer_of(weights(), Activation()), way
    )
    layer.set_lora_context(adapters(torch.zeros(3, dtype=torch.int64)))
    with pytest.raises(InvalidInputError, match=r"adapters.*'mc2'.*'all_to_all'"):
        layer(torch.randn(3, HIDDEN), torch.randn(3, EXPERTS), tokens=[3])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"w2_lora_a_stacked": (torch.zeros(LORAS, 4, RANK, INTER),)}, r"\[L, E, r, K\]"),
        ({"w2_lora_b_stacked": (torch.zeros(LORAS, EXPERTS, HIDDEN, 5),)}, r"\[L, E, r, K\]"),
        ({"w13_lora_a_stacked": ()}, r"\[L, E, r, K\]"),
        ({"token_lora_mapping": torch.zeros(3)}, r"token_lora_mapping of torch.float32"),
    ],
    ids=["places", "rank", "no stack", "float"],
)
def test_stacks_that_do_not_belong_together(change: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        replace(adapters(torch.zeros(0, dtype=torch.int64)), **change)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((HIDDEN + 1, INTER, EXPERTS), "H = 32: the experts have H = 33"),
        ((HIDDEN, INTER + 1, EXPERTS), r"2 \* I = 128: the experts have 2 \* I = 130"),
        ((HIDDEN, INTER, EXPERTS + 1), "E = 5: the experts have E = 6"),
    ],
)
def test_adapters_of_other_experts(sizes: tuple[int, int, int], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        adapters(torch.zeros(0, dtype=torch.int64)).check(*sizes)
