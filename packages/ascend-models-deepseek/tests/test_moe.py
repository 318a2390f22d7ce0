"""The layer of experts over ranks: the outputs of one process, each summed exactly once.

Ranks are threads; test_processes.py of the plugin serves the model in processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_fused_moe.eplb import EplbBalancer
from ascend_fused_moe.groups import ParallelGroups, SingleRank, single_rank
from ascend_fused_moe.vllm import groups as groups_of_vllm
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.moe import DeepseekV4MoE
from ascend_models_deepseek.deepseek_v4.sharding import Shard
from ascend_models_deepseek.deepseek_v4.weights import main_table
from ascend_models_deepseek.testing import SPECS
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.testing.simulated_group import SimulatedGroup, on_grid

HASH, SCORE = 0, 2
SUMS = ("all_reduce", "reduce_scatter")


def spec_of(experts: int, shared: int = 1) -> DeepseekV4Spec:
    config = replace(SPECS["mixed"], n_routed_experts=experts).original_config()
    return replace(DeepseekV4Spec.from_config(config), n_shared_experts=shared)


def layer_of(
    spec: DeepseekV4Spec,
    groups: ParallelGroups,
    layer: int,
    tensors: dict[str, torch.Tensor],
    redundant: int | None = None,
) -> DeepseekV4MoE:
    """A rank's layer, with its part of a checkpoint."""
    tp, whole = groups.tp, groups.expert_parallel
    shard = Shard.of(spec, tp.world_size, tp.rank_in_group, (0, 1), whole_experts=whole)
    build: Any = SimpleNamespace(
        spec=spec,
        shard=shard,
        dtype=torch.float32,
        groups=groups,
        param_prefix=lambda layer: f"model.layers.{layer}",
        weight=lambda name, *shape: torch.nn.Parameter(torch.empty(shape), requires_grad=False),
        experts=lambda name: {},
        redundant_experts=redundant,
    )
    made = DeepseekV4MoE(build, layer)
    rules = {
        name: replace(rule, param=rule.param.split(".ffn.")[1])
        for name, rule in main_table(spec, shard).rules.items()
        if name in tensors
    }
    assert {rule.param for rule in rules.values()} == {n for n, _ in made.named_parameters()}
    WeightTable(rules, ("no other",)).load(made, tensors.items())
    return made


def checkpoint(spec: DeepseekV4Spec, layer: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(layer)
    rules = main_table(spec, Shard.of(spec, 1, 0, (0, 1))).rules
    return {
        name: torch.randint(0, rule.below, rule.shape, generator=generator)
        if rule.below
        else torch.randn(rule.shape, generator=generator) * 0.2
        for name, rule in rules.items()
        if name.startswith(f"layers.{layer}.ffn.")
    }


def given(
    spec: DeepseekV4Spec, tokens: Sequence[int]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(sum(tokens))
    hidden = torch.randn(sum(tokens), spec.hidden_size, generator=generator)
    ids = torch.randint(0, spec.vocab_size, (sum(tokens),), generator=generator)
    return list(hidden.split(list(tokens))), list(ids.split(list(tokens)))


def sums(group: Any) -> list[str]:
    return [one for one in getattr(group, "calls", []) if one in SUMS]


def run(
    spec: DeepseekV4Spec, layer: int, tp: int, tokens: Sequence[int], *, expert_parallel: bool
) -> list[dict[str, list[str]]]:
    """Compare all ranks of ``len(tokens)`` replicas with one process; return what each summed."""
    tensors = checkpoint(spec, layer)
    hidden, ids = given(spec, tokens)
    whole = layer_of(spec, single_rank(), layer, tensors)
    expected = [whole(x, i) for x, i in zip(hidden, ids, strict=True)]

    def one(
        row: SimulatedGroup, column: SimulatedGroup, everyone: SimulatedGroup
    ) -> tuple[torch.Tensor, dict[str, list[str]]]:
        views = {"tp": row, "dp": column, "ep": everyone}
        used: dict[str, Any] = {
            name: group if group.world_size > 1 and (expert_parallel or name == "tp") else None
            for name, group in views.items()
        }
        groups = ParallelGroups(**{n: g or SingleRank() for n, g in used.items()})
        made = layer_of(spec, groups, layer, tensors)
        assert (made.runner is not None) == groups.expert_parallel
        place = column.rank_in_group
        out = made(hidden[place].clone(), ids[place])
        return out, {name: sums(group) for name, group in used.items()}

    results = on_grid(len(tokens), tp, one)
    for rank, (out, _) in enumerate(results):
        torch.testing.assert_close(out, expected[rank // tp], rtol=1e-5, atol=1e-5)
    return [calls for _, calls in results]


@pytest.mark.parametrize("layer", [HASH, SCORE], ids=["hash", "score"])
@pytest.mark.parametrize("tokens", [1, 0, 33])
@pytest.mark.parametrize(("tp", "experts"), [(2, 8), (2, 7), (4, 7), (4, 4)])
def test_replicas_of_one_sum_once(layer: int, tokens: int, tp: int, experts: int) -> None:
    """Slices of all experts, and whole ones: one all-reduce of shared and routed experts."""
    for expert_parallel in (False, True):
        made = run(spec_of(experts), layer, tp, [tokens], expert_parallel=expert_parallel)
        assert made == [{"tp": ["all_reduce"], "dp": [], "ep": []}] * tp


@pytest.mark.parametrize("layer", [HASH, SCORE], ids=["hash", "score"])
@pytest.mark.parametrize(
    ("tp", "tokens"), [(1, [3, 5]), (1, [4, 0, 1]), (2, [0, 7]), (2, [2, 2]), (1, [0, 0])]
)
def test_replicas_share_experts(layer: int, tp: int, tokens: list[int]) -> None:
    """Each replica gets the outputs of its own tokens, also without any."""
    made = run(spec_of(7), layer, tp, tokens, expert_parallel=True)
    once = {"tp": ["all_reduce"] * (tp > 1), "dp": ["reduce_scatter"] * any(tokens), "ep": []}
    assert made == [once] * (tp * len(tokens))


@pytest.mark.parametrize("expert_parallel", [False, True])
def test_without_shared_experts(expert_parallel: bool) -> None:
    made = run(spec_of(7, shared=0), SCORE, 2, [5], expert_parallel=expert_parallel)
    assert made == [{"tp": ["all_reduce"], "dp": [], "ep": []}] * 2


def test_a_rank_holds_its_experts_alone() -> None:
    spec = spec_of(7)
    tensors = checkpoint(spec, SCORE)

    def held(row: SimulatedGroup, column: SimulatedGroup, everyone: SimulatedGroup) -> Any:
        groups = ParallelGroups(row, SingleRank(), everyone)
        return layer_of(spec, groups, SCORE, tensors).experts

    first, second = on_grid(1, 2, held)
    assert first.w2.shape == second.w2.shape == (4, spec.hidden_size, spec.moe_intermediate_size)
    name = f"layers.{SCORE}.ffn.experts"
    for expert in range(7):
        own = first.w2[expert] if expert < 4 else second.w2[expert - 4]
        assert torch.equal(own, tensors[f"{name}.{expert}.w2.weight"])


class GridExchange:
    """A rebalance's ranks as threads."""

    def __init__(self, group: SimulatedGroup) -> None:
        self.group, self.rank, self.ranks = group, group.rank_in_group, group.world_size
        self.fails = False

    def said(self, words: str) -> list[str]:
        if self.fails and words == "":
            words = "the device is gone"
        length = torch.tensor([len(words)])
        longest = int(self.group.all_gather(length, 0).max())
        text = torch.tensor([*map(ord, words), *[0] * (longest - len(words))]).view(1, -1)
        rows = self.group.all_gather(text, 0).tolist()
        return ["".join(chr(one) for one in row if one) for row in rows]

    def swap(self, sends: Any, receives: Any) -> None:
        """Every rank shows all others what it sends; parcels between two keep their order."""
        sizes = self.group.all_gather(torch.tensor([[len(sends)]]), 0).flatten().tolist()
        longest = max([t.numel() for _, t in sends], default=0)
        longest = int(self.group.all_gather(torch.tensor([longest]), 0).max())
        shown = torch.zeros(max(sizes), longest + 1)
        for row, (to, tensor) in enumerate(sends):
            shown[row, 0] = to
            shown[row, 1 : 1 + tensor.numel()] = tensor.flatten()
        every = self.group.all_gather(shown.unsqueeze(0), 0)
        for source in range(self.ranks):
            mine = [r for r in every[source, : sizes[source]] if int(r[0]) == self.rank]
            coming = [tensor for other, tensor in receives if other == source]
            for row, tensor in zip(mine, coming, strict=True):
                tensor.copy_(row[1 : 1 + tensor.numel()].view(tensor.shape))


@pytest.mark.parametrize("layer", [HASH, SCORE], ids=["hash", "score"])
@pytest.mark.parametrize(("ranks", "redundant"), [(2, 0), (2, 3), (4, 2)])
def test_a_rebalance_moves_load_and_not_outputs(layer: int, ranks: int, redundant: int) -> None:
    """Counted, planned and moved by the balancer; a failure on one rank changes no rank."""
    spec = spec_of(7)
    tensors = checkpoint(spec, layer)
    hidden, ids = (one[0] for one in given(spec, [40]))
    # Most tokens visit the same experts.
    hidden[:32], ids[:32] = hidden[0].clone(), ids[0].clone()
    expected = layer_of(spec, single_rank(), layer, tensors)(hidden, ids)

    def one(row: SimulatedGroup, column: SimulatedGroup, everyone: SimulatedGroup) -> Any:
        made = layer_of(
            spec, ParallelGroups(row, SingleRank(), everyone), layer, tensors, redundant
        )
        exchange = GridExchange(everyone)
        balancer = EplbBalancer([made.experts], exchange, window=8, interval=4)
        outputs, reports, held = [], [], []
        for step in range(9):
            exchange.fails = step == 0 and exchange.rank == 0
            balancer.begin(40)
            outputs.append(made(hidden.clone(), ids))
            held.append((made.experts.maps.placement, made.experts.w2.data.clone()))
            reports.append(balancer.step(counts=step != 7))
        return outputs, reports, held

    results = on_grid(1, ranks, one)
    first = results[0][1]
    assert [report is not None for report in first] == [True, *[False] * 3] * 2 + [True]
    for outputs, reports, held in results:
        for out in outputs:
            torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        assert reports == first
        assert [one[0] for one in held] == [one[0] for one in results[0][2]]
        assert held[1][0] == held[0][0]
        assert torch.equal(held[1][1], held[0][1])
    failed, done, end = (report for report in first if report)
    if redundant:
        assert "the device is gone" in failed.failure
        assert (failed.moved, failed.after) == (0, pytest.approx(failed.before, rel=0.1))
        assert done.failure == ""
        assert done.moved > 0
        assert done.after < done.before
        assert end.before == pytest.approx(done.after, rel=0.1)


class Place(SingleRank):
    """One of several ranks that nobody asks for anything."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank_in_group, self.world_size = rank, size


def test_a_replica_counts_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_of_vllm, "tokens_of_replicas", lambda: (3, 0, 4))
    for rank, rows in enumerate([(0, 3), (3, 3), (3, 7)]):
        groups = ParallelGroups(SingleRank(), Place(rank, 3), Place(rank, 3))
        assert groups_of_vllm.own_rows(groups) == rows
    assert groups_of_vllm.own_rows(ParallelGroups(Place(1, 2), SingleRank(), Place(1, 2))) is None
    monkeypatch.setattr(groups_of_vllm, "tokens_of_replicas", lambda: None)
    assert groups_of_vllm.own_rows(groups) is None
