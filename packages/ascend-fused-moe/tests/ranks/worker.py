"""A small layer spread over the ranks of this process group, and the same layer in one process.

With ``ASCEND_TEST_DEVICE=npu`` the ranks have a simulated NPU each, whose groups exchange through
host memory.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from ascend_fused_moe.communication import AllGatherCommImpl, AlltoAllCommImpl, MC2CommImpl
from ascend_fused_moe.eplb import (
    ExpertLoadWindow,
    ProcessExchange,
    initial_placement,
    plan_rebalance,
)
from ascend_fused_moe.expert_partition import ExpertPartition
from ascend_fused_moe.experts_mlp import StackedExpertsMlp
from ascend_fused_moe.groups import ParallelGroups, parallel_groups
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_fused_moe.mlp import Activation
from ascend_fused_moe.pipeline import FusedExpertsResult
from ascend_fused_moe.quant_params import build_quant_params
from ascend_fused_moe.routers import RouterSettings, create_ascend_fused_moe_router
from ascend_fused_moe.runner import (
    AscendMoERunner,
    AscendSharedExperts,
    SharedExpertParallelMode,
)
from ascend_ops_core import cpu_kernels
from torch import distributed

DEVICE = os.environ.get("ASCEND_TEST_DEVICE", "cpu")
INTER, SHARED = 12, 24
METHODS = {one.kind.value: one for one in (AllGatherCommImpl, AlltoAllCommImpl, MC2CommImpl)}
TENSOR_PARALLEL = SharedExpertParallelMode.TENSOR_PARALLEL
SEQUENCE_PARALLEL = SharedExpertParallelMode.SEQUENCE_PARALLEL


def set_up() -> None:
    """Make this process a rank."""
    # Four processes that compile kernels take longer than all that they compute here.
    cpu_kernels.numba_available = lambda: False
    if DEVICE == "npu":
        from ascend_ops_core.testing.simulated_npu import install

        install("A3", devices=1, kernels="reference", memory_bytes=64 * 1024**2)


@dataclass(frozen=True)
class Layer:
    """A layer, its tokens and its ranks.

    Attributes:
        dp: data-parallel parts.
        tp: ranks of a part.
        tokens: of each part, padding included.
        method: way of communication.
        experts: number of experts.
        top_k: experts of a token.
        expert_parallel: whole experts on each rank; else slices.
        sequence_parallel: the ranks of a part share its tokens.
        shared: mode of the shared experts, or None.
        by_table: experts are looked up by token id; tokens of padding have an id outside.
        only: the experts that tokens choose from; empty for all.
        padding: of each part, its last rows that are padding, which hold NaN.
        limit: bound of the gated activation.
        dtype: of tokens and weights.
        hidden: size of a token.
        ask: the ranks ask each other for the tokens of the parts.
        redundant: replicas besides one of each expert; None for experts without maps.
        quant: mode of the experts that have maps.
        options: of the runner.
    """

    dp: int
    tp: int
    tokens: tuple[int, ...]
    method: str = "all_gather"
    experts: int = 8
    top_k: int = 3
    expert_parallel: bool = True
    sequence_parallel: bool = False
    shared: str | None = None
    by_table: bool = False
    only: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    limit: float | None = None
    dtype: torch.dtype = torch.float32
    hidden: int = 16
    ask: bool = False
    redundant: int | None = None
    quant: str | None = None
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def ranks(self) -> int:
        return self.dp * self.tp


@dataclass(frozen=True)
class Values:
    """Weights of a layer and the tokens of its parts."""

    w13: torch.Tensor
    w2: torch.Tensor
    shared13: torch.Tensor
    shared2: torch.Tensor
    x: list[torch.Tensor]
    logits: list[torch.Tensor]
    token_ids: list[torch.Tensor]
    table: torch.Tensor


def values_of(layer: Layer) -> Values:
    """The same in every process."""
    new = torch.Generator().manual_seed(7)

    def randn(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=new) * scale).to(layer.dtype)

    experts, hidden = layer.experts, layer.hidden
    into = 1.2 * hidden**-0.5
    logits = [torch.randn(count, experts, generator=new) for count in layer.tokens]
    if layer.only:
        for one in logits:
            one[:, [e for e in range(experts) if e not in layer.only]] = -torch.inf
    x = [randn(count, hidden) for count in layer.tokens]
    token_ids = [torch.randint(0, 11, (count,), generator=new) for count in layer.tokens]
    for one, ids, padding in zip(x, token_ids, layer.padding, strict=False):
        one[len(one) - padding :] = torch.nan
        ids[len(one) - padding :] = 1000
    return Values(
        randn(experts, 2 * INTER, hidden, scale=into),
        randn(experts, hidden, INTER, scale=0.3),
        randn(2 * SHARED, hidden, scale=into),
        randn(hidden, SHARED, scale=0.3),
        x,
        logits,
        token_ids,
        torch.rand(11, experts, generator=new).argsort(-1)[:, : layer.top_k],
    )


class CountingGroup:
    """A group that counts the calls of each collective.

    Attributes:
        calls: number of calls by name.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._group, name)
        if not callable(found) or self._group.world_size == 1:
            return found

        def counted(input_: torch.Tensor, *args: Any) -> torch.Tensor:
            self.calls[name] += 1
            result: torch.Tensor = found(input_.cpu(), *args)
            return result.to(input_.device)

        return counted


class RecordingRouter:
    """Keeps the experts that a router chose for the rows that are active."""

    def __init__(self, router: Any) -> None:
        self._router = router
        self.chosen: list[list[int]] = []

    def select_experts(self, given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        weights, ids = self._router.select_experts(given)
        active = slice(None) if given.active is None else given.active
        self.chosen += ids[active].tolist()
        return weights, ids


@cache
def _groups(dp: int, tp: int, expert_parallel: bool) -> ParallelGroups:
    return parallel_groups(dp, tp, expert_parallel=expert_parallel)


def run(layer: Layer) -> dict[str, Any] | None:
    """This rank's part of a layer; nothing on a rank that the layer does not have."""
    plain = _groups(layer.dp, layer.tp, layer.expert_parallel)
    if distributed.get_rank() >= layer.ranks:
        return None
    groups = ParallelGroups(*(CountingGroup(one) for one in (plain.tp, plain.dp, plain.ep)))
    runner, router = _runner(layer, groups)
    results: list[FusedExpertsResult] = []
    runner.observe = results.append
    given, here = _inputs(layer, groups)
    given = {name: one.to(DEVICE) for name, one in given.items()}
    output = runner(tokens=None if layer.ask else layer.tokens, **given)
    assert here == len(output)
    whole = runner.output_is_reduced
    output = runner.maybe_all_reduce_tensor_model_parallel(output)
    return {
        "output": output.float().cpu().numpy(),
        "chosen": router.chosen,
        "whole": whole,
        "load": results[-1].group_list.counts().values.tolist(),
        "calls": {
            name: dict(group.calls)
            for name, group in (("tp", groups.tp), ("dp", groups.dp), ("ep", groups.ep))
        },
    }


def run_all(layers: list[Layer]) -> list[dict[str, Any] | None]:
    """This rank's part of each of some layers."""
    return [run(layer) for layer in layers]


def rebalance(layer: Layer) -> dict[str, Any] | None:
    """Outputs before and after experts have moved to where the load of the first says."""
    plain = _groups(layer.dp, layer.tp, True)
    if distributed.get_rank() >= layer.ranks:
        return None
    runner, _ = _runner(layer, plain)
    experts = runner.mlp
    window = ExpertLoadWindow(layers=1, places=experts.maps.placement.places, window=4)
    experts.init_eplb(window.of_layer(0))
    given, _ = _inputs(layer, plain)
    before = runner(tokens=layer.tokens, **given)
    window.advance()
    total = window.total()[0]
    distributed.all_reduce(total, group=plain.ep._group)
    load = window.of_experts(total, experts.maps.placement)
    plan = plan_rebalance(experts.maps.placement, load.tolist())
    moved = experts.rebalance(plan.placement, ProcessExchange(plain.ep._group))
    after = runner(tokens=layer.tokens, **given)
    return {
        "before": before.numpy(),
        "after": after.numpy(),
        "moved": moved,
        "load": load.tolist(),
        "places": total.tolist(),
        "replicas": [len(one) for one in experts.maps.placement.replicas],
    }


def _runner(layer: Layer, groups: Any) -> tuple[AscendMoERunner, RecordingRouter]:
    values = values_of(layer)
    table = values.table.to(DEVICE) if layer.by_table else None
    settings = RouterSettings(layer.experts, layer.top_k)
    router = RecordingRouter(create_ascend_fused_moe_router(settings, table=table))
    partition = ExpertPartition(layer.experts, groups.ep.world_size)
    options = dict(layer.options)
    if layer.redundant is None:
        experts = _experts(layer, values, groups, partition)
        mlp: Any = StackedExpertsMlp(*(one.to(DEVICE) for one in experts), layer.limit)
    else:
        mlp = _mapped_experts(layer, values, groups)
        partition = ExpertPartition(mlp.maps.placement.places, partition.ranks)
        options["to_physical"] = mlp.to_physical
    method = METHODS[layer.method](groups, partition, sequence_parallel=layer.sequence_parallel)
    shared = _shared_experts(layer, values, groups)
    return AscendMoERunner(router, mlp, method, shared_experts=shared, **options), router


def _shared_experts(layer: Layer, values: Values, groups: Any) -> AscendSharedExperts | None:
    if layer.shared is None:
        return None
    mode = SharedExpertParallelMode(layer.shared)
    w13, w2 = values.shared13, values.shared2
    if mode in (TENSOR_PARALLEL, SEQUENCE_PARALLEL):
        w13, w2 = _slice(w13, w2, groups.tp.rank_in_group, groups.tp.world_size)
    return AscendSharedExperts(
        w13.to(DEVICE),
        w2.to(DEVICE),
        groups,
        mode,
        sequence_parallel=layer.sequence_parallel,
        swiglu_limit=layer.limit,
    )


def _mapped_experts(layer: Layer, values: Values, groups: Any) -> AscendRoutedExperts:
    """Experts that are loaded by name, with maps of their replicas."""
    slices = (0, 1) if layer.expert_parallel else (groups.rank, groups.ranks)
    experts = AscendRoutedExperts(
        layer.experts,
        layer.hidden,
        INTER,
        layer.dtype,
        activation=Activation(limit=layer.limit),
        quant=None if layer.quant is None else build_quant_params(layer.quant),
        ep_rank=groups.ep.rank_in_group,
        ep_ranks=groups.ep.world_size,
        tp_rank=slices[0],
        tp_ranks=slices[1],
        placement=initial_placement(layer.experts, groups.ep.world_size, layer.redundant or 0),
    )
    for e in range(layer.experts):
        for part, weight in (("w13", values.w13[e]), ("w2", values.w2[e])):
            if layer.quant is None:
                experts.load_expert(e, part, weight)
            else:
                rows, scale = by_channel(weight)
                experts.load_expert(e, part, rows)
                experts.load_expert(e, f"{part}_scale", scale)
    experts.process_weights_after_loading()
    return experts.to(DEVICE)


def by_channel(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 values and the float32 scale of each row."""
    scale = weight.float().abs().amax(dim=1) / 127
    return (weight.float() / scale.unsqueeze(1)).round().to(torch.int8), scale


def _experts(
    layer: Layer, values: Values, groups: Any, partition: ExpertPartition
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's experts; places without one hold NaN, so that reading them shows."""
    if not layer.expert_parallel:
        return _slice(values.w13, values.w2, groups.rank, groups.ranks)
    own = partition.experts_of(groups.ep.rank_in_group)
    empty = partition.capacity - len(own)
    return tuple(
        torch.cat([one[own.start : own.stop], torch.full_like(one[:empty], torch.nan)])
        for one in (values.w13, values.w2)
    )


def _slice(
    w13: torch.Tensor, w2: torch.Tensor, rank: int, ranks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    gate, up = w13.chunk(2, dim=-2)
    parts = [one.chunk(ranks, dim=-2)[rank] for one in (gate, up)]
    return torch.cat(parts, dim=-2), w2.chunk(ranks, dim=-1)[rank].contiguous()


def _inputs(layer: Layer, groups: Any) -> tuple[dict[str, torch.Tensor], int]:
    part, place = groups.dp.rank_in_group, groups.tp.rank_in_group
    values = values_of(layer)
    given = {"hidden_states": values.x[part], "router_logits": values.logits[part]}
    if layer.by_table:
        given["token_ids"] = values.token_ids[part]
    count = layer.tokens[part]
    if layer.padding:
        given["active"] = torch.arange(count) < count - layer.padding[part]
    if layer.sequence_parallel:
        share = -(-count // layer.tp)
        given = {name: one[place * share : (place + 1) * share] for name, one in given.items()}
    return given, len(given["hidden_states"])


def chosen_by_sorting(layer: Layer) -> list[list[list[int]]]:
    """Of every part and token, the experts of the highest logits, the lower of equal ones first.

    By table, those that it has for the token.
    """
    values = values_of(layer)
    if layer.by_table:
        last = len(values.table) - 1
        return [values.table[ids.clamp(max=last)].tolist() for ids in values.token_ids]
    return [
        [
            sorted(range(layer.experts), key=lambda e, row=row: (-row[e], e))[: layer.top_k]
            for row in part.tolist()
        ]
        for part in values.logits
    ]


def by_brute_force(layer: Layer) -> list[torch.Tensor]:
    """The output of every part, token by token in float64; rows of padding are 0 or shared."""
    values = values_of(layer)
    chosen = chosen_by_sorting(layer)
    outputs = []
    for part, (x, logits) in enumerate(zip(values.x, values.logits, strict=True)):
        real = len(x) - (layer.padding[part] if layer.padding else 0)
        out = torch.zeros(len(x), layer.hidden, dtype=torch.float64)
        for t in range(len(x)):
            if layer.shared is not None:
                out[t] = _network(x[t], values.shared13, values.shared2, layer.limit)
            if t < real:
                scores = logits[t].double()[chosen[part][t]].softmax(-1)
                for weight, e in zip(scores, chosen[part][t], strict=True):
                    out[t] += weight * _network(x[t], values.w13[e], values.w2[e], layer.limit)
        outputs.append(out)
    return outputs


def _network(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, limit: float | None
) -> torch.Tensor:
    gate, up = (w13.double() @ x.double()).chunk(2)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return w2.double() @ (gate / (1 + (-gate).exp()) * up)
