"""The layer of experts: by its definition, and over ranks, where outputs are summed once.

Ranks are threads; the plugin's tests serve the model in processes.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_fused_moe.groups import ParallelGroups, SingleRank, single_rank
from ascend_fused_moe.layers.expert_rule import ExpertRule
from ascend_models_minimax.minimax_m3.build import Build
from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.model import expert_mapping
from ascend_models_minimax.minimax_m3.moe import MiniMaxM3MLP, MiniMaxM3MoE
from ascend_models_minimax.minimax_m3.sharding import Shard
from ascend_models_minimax.minimax_m3.weights import main_table
from ascend_models_minimax.testing import M3_SPECS
from ascend_ops_core import InvalidInputError
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.testing.simulated_group import SimulatedGroup, on_grid
from torch import nn

MOE, DENSE = 2, 0


def spec_of(**changes: Any) -> MiniMaxM3Spec:
    spec = MiniMaxM3Spec.from_config(M3_SPECS["m3"].published_config())
    return replace(spec, **changes)


def checkpoint(spec: MiniMaxM3Spec, layer: int) -> dict[str, torch.Tensor]:
    """The tensors of a layer's feed-forward block, by their names in the layer."""
    generator = torch.Generator().manual_seed(layer)
    prefix = f"model.layers.{layer}."
    rules = main_table(spec, Shard.of(spec, 1, 0, (0, 1))).rules
    return {
        name: torch.randn(rule.shape, generator=generator) * 0.3
        for name, rule in rules.items()
        if name.startswith((f"{prefix}mlp.", f"{prefix}block_sparse_moe."))
    }


def layer_of(
    spec: MiniMaxM3Spec, groups: ParallelGroups, layer: int, tensors: dict[str, torch.Tensor]
) -> nn.Module:
    """A rank's block, with its part of a checkpoint."""
    tp = groups.tp
    shard = Shard.of(
        spec, tp.world_size, tp.rank_in_group, (0, 1), whole_experts=groups.expert_parallel
    )
    build: Any = SimpleNamespace(spec=spec, shard=shard, dtype=torch.float32, groups=groups)
    build.weight, build.experts = lambda _, *shape: torch.empty(shape), lambda _: {}
    build.activation = Build.activation.fget(build)  # type: ignore[attr-defined]
    moe = spec.is_moe_layer(layer)
    made = MiniMaxM3MoE(build, "moe") if moe else MiniMaxM3MLP(build, "mlp", shard.dense)
    for parameter in made.parameters():
        parameter.data.fill_(float("nan"))
    prefix = f"model.layers.{layer}.{'block_sparse_moe' if layer == MOE else 'mlp'}."
    rules = {
        name: replace(rule, param=rule.param.removeprefix(prefix))
        for name, rule in main_table(spec, shard).rules.items()
        if name in tensors
    }
    WeightTable(rules, ("no other",)).load(made, tensors.items())
    return made


def network(x: torch.Tensor, gate: Any, up: Any, down: Any, spec: MiniMaxM3Spec) -> torch.Tensor:
    """SwiGLU-OAI between two products, by its definition."""
    g = (x @ gate.T).clamp(max=spec.swiglu_limit)
    u = (x @ up.T).clamp(-spec.swiglu_limit, spec.swiglu_limit)
    activated = g * torch.sigmoid(spec.swiglu_alpha * g) * (u + spec.swiglu_beta)
    return activated @ down.T


def by_hand(spec: MiniMaxM3Spec, tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The block of experts, token by token."""
    own = {name.split("block_sparse_moe.")[1]: tensor for name, tensor in tensors.items()}
    shared = [own[f"shared_experts.{part}_proj.weight"] for part in ("gate", "up", "down")]
    out = network(x, *shared, spec)
    for t, token in enumerate(x):
        scores = torch.sigmoid(own["gate.weight"] @ token)
        ranked = scores + own["e_score_correction_bias"] if spec.use_routing_bias else scores
        chosen = sorted(range(len(scores)), key=lambda e: -float(ranked[e]))
        chosen = chosen[: spec.num_experts_per_tok]
        total = sum(float(scores[e]) for e in chosen)
        for e in chosen:
            weights = (own[f"experts.{e}.{part}.weight"] for part in ("w1", "w3", "w2"))
            scale = spec.routed_scaling_factor * float(scores[e]) / total
            out[t] += scale * network(token[None], *weights, spec)[0]
    return out


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"swiglu_beta": 0.25, "swiglu_alpha": 1.1, "swiglu_limit": 0.4},
        {"routed_scaling_factor": 0.5, "use_routing_bias": False},
    ],
    ids=["published", "activation", "scale"],
)
@pytest.mark.parametrize("tokens", [0, 1, 13])
def test_by_definition(changes: dict[str, Any], tokens: int) -> None:
    spec = spec_of(**changes)
    tensors = checkpoint(spec, MOE)
    x = torch.randn(tokens, spec.hidden_size, generator=torch.Generator().manual_seed(tokens))
    out = layer_of(spec, single_rank(), MOE, tensors)(x)
    torch.testing.assert_close(out, by_hand(spec, tensors, x), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("tokens", [0, 1, 13])
@pytest.mark.parametrize("whole", [False, True], ids=["slices", "whole experts"])
@pytest.mark.parametrize("layer", [MOE, DENSE], ids=["experts", "mlp"])
def test_ranks_sum_once(layer: int, whole: bool, tokens: int) -> None:
    spec = spec_of()
    tensors = checkpoint(spec, layer)
    x = torch.randn(tokens, spec.hidden_size, generator=torch.Generator().manual_seed(tokens))
    expected = layer_of(spec, single_rank(), layer, tensors)(x)

    def one(
        row: SimulatedGroup, column: SimulatedGroup, everyone: SimulatedGroup
    ) -> tuple[torch.Tensor, list[str]]:
        groups = ParallelGroups(row, SingleRank(), everyone if whole else SingleRank())
        out = layer_of(spec, groups, layer, tensors)(x.clone())
        return out, [call for call in row.calls if call in ("all_reduce", "reduce_scatter")]

    for out, sums in on_grid(1, 2, one):
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
        assert sums == ["all_reduce"]


def test_the_mapping_of_experts_says_what_the_table_loads() -> None:
    spec = spec_of()
    rules = main_table(spec, Shard.of(spec, 1, 0, (0, 1))).rules
    prefix = f"model.layers.{MOE}.block_sparse_moe."
    mapping = expert_mapping(spec)
    routed = [name for name in rules if name.startswith(f"{prefix}experts.")]
    assert sorted(prefix + name for _, name, _, _ in mapping) == sorted(routed)
    for place, name, expert, tensor in mapping:
        rule = rules[prefix + name]
        assert isinstance(rule, ExpertRule)
        assert (rule.param, rule.expert, rule.tensor) == (prefix + place, expert, tensor)


def test_the_bias_of_another_number_of_experts_is_refused() -> None:
    parameter = nn.Parameter(torch.zeros(4), requires_grad=False)
    with pytest.raises(InvalidInputError, match=r"shape \[1\].*4 experts"):
        MiniMaxM3MoE.ebias_weight_loader(parameter, torch.ones(1))
    assert not bool(parameter.any())
    MiniMaxM3MoE.ebias_weight_loader(parameter, torch.full((4,), 0.5, dtype=torch.bfloat16))
    assert parameter.dtype == torch.float32
    assert bool((parameter == 0.5).all())
