"""DeepSeek-V3's checkpoint: which tensors it has, and where each goes in the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from ascend_fused_moe.layers.expert_rule import ExpertRule
from ascend_ops_core.checkpoint.table import TensorRule, WeightTable
from torch import nn

from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec
from ascend_models_deepseek.deepseek_v3.sharding import Shard

if TYPE_CHECKING:
    from ascend_models_deepseek.deepseek_v3.architecture import Architecture

__all__ = ["TensorRule", "WeightTable", "attention_rules", "main_table", "mtp_table"]

Rules = Iterator[tuple[str, TensorRule]]


@dataclass(frozen=True)
class CheckedRule(TensorRule):
    """A tensor that is checked and goes nowhere."""

    @property
    def filled(self) -> str | None:
        """No parameter."""
        return None

    def load(self, tensor: torch.Tensor, model: nn.Module) -> None:
        """Leave ``model`` as it is."""


@dataclass(frozen=True)
class CacheScaleRule(CheckedRule):
    """A scale or an offset of ModelSlim's FAKQuant, of each head or of all.

    Rows of eight bits make their own scales, so these are not used.
    """

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """``[heads, 1]`` or ``[heads]``, of all heads or of the one that is cached."""
        heads = self.shape[0]
        return (heads, 1), (heads,), (1, 1), (1,)

    @property
    def loadable(self) -> tuple[torch.dtype, ...]:
        """Dtypes in which the checkpoint may store it."""
        return (*super().loadable, torch.int8)


def main_table(architecture: Architecture, spec: DeepseekV3Spec, shard: Shard) -> WeightTable:
    """Tensors of the main model, embedding and head included."""
    rules = {
        "model.embed_tokens.weight": _vocab(spec, shard, "model.embed_tokens.weight"),
        "lm_head.weight": _vocab(spec, shard, "lm_head.weight"),
        "model.norm.weight": TensorRule((spec.hidden_size,), "model.norm"),
    }
    for layer in range(spec.num_hidden_layers):
        name = f"model.layers.{layer}"
        rules.update(_layer(architecture, spec, shard, layer, name, name))
    drafts = range(spec.num_hidden_layers, spec.num_hidden_layers + spec.num_mtp_layers)
    return WeightTable(rules, tuple(f"model.layers.{layer}." for layer in drafts))


def mtp_table(architecture: Architecture, spec: DeepseekV3Spec, shard: Shard) -> WeightTable:
    """Tensors of the MTP layers. Embedding and head default to the main model's.

    Published checkpoints carry them at the first MTP layer, whose block's tensors have no prefix of
    their own beside ``eh_proj`` and the norms.
    """
    hidden = spec.hidden_size
    rules: dict[str, TensorRule] = {}
    for i in range(spec.num_mtp_layers):
        layer = spec.num_hidden_layers + i
        name = f"model.layers.{layer}"
        rules.update(_layer(architecture, spec, shard, layer, name, f"{name}.block"))
        for norm in ("enorm", "hnorm"):
            rules[f"{name}.{norm}.weight"] = TensorRule((hidden,), f"{name}.{norm}")
        rules[f"{name}.eh_proj.weight"] = TensorRule((hidden, 2 * hidden), f"{name}.eh_proj")
        rules[f"{name}.shared_head.norm.weight"] = TensorRule((hidden,), f"{name}.norm")
        if i == 0:
            for own, param in (
                ("embed_tokens", "model.embed_tokens"),
                ("shared_head.head", "lm_head"),
            ):
                rule = _vocab(spec, shard, f"{param}.weight", optional=True)
                rules[f"{name}.{own}.weight"] = rule
    mains = tuple(f"model.layers.{layer}." for layer in range(spec.num_hidden_layers))
    return WeightTable(rules, ("model.embed_tokens.", "model.norm.", "lm_head.", *mains))


def attention_rules(spec: DeepseekV3Spec, shard: Shard, layer: int, name: str, param: str) -> Rules:
    """Tensors of latent attention, ``name`` ending in ``self_attn``."""
    hidden, heads = spec.hidden_size, spec.num_attention_heads
    rank, rows = spec.q_lora_rank or 0, spec.kv_lora_rank + spec.qk_rope_head_dim
    weights = f"{param}.weights"
    first, last = (head * spec.qk_head_dim for head in shard.heads)
    query = (heads * spec.qk_head_dim, rank or hidden)
    own = (slice(first, last),)
    if rank:
        yield (
            f"{name}.q_a_proj.weight",
            TensorRule((rank, hidden), f"{weights}.qkv_a", (slice(0, rank),)),
        )
        yield f"{name}.q_a_layernorm.weight", TensorRule((rank,), f"{weights}.q_a_norm")
        yield f"{name}.q_b_proj.weight", TensorRule(query, f"{weights}.q_b", source=own)
    else:
        yield f"{name}.q_proj.weight", TensorRule(query, f"{weights}.q_b", source=own)
    yield (
        f"{name}.kv_a_proj_with_mqa.weight",
        TensorRule((rows, hidden), f"{weights}.qkv_a", (slice(rank, None),)),
    )
    yield f"{name}.kv_a_layernorm.weight", TensorRule((spec.kv_lora_rank,), f"{weights}.kv_a_norm")
    both = spec.qk_nope_head_dim + spec.v_head_dim
    yield (
        f"{name}.kv_b_proj.weight",
        TensorRule(
            (heads * both, spec.kv_lora_rank),
            f"{weights}.kv_b",
            source=(slice(*shard.heads),),
            view=(heads, both, spec.kv_lora_rank),
        ),
    )
    first, last = (head * spec.v_head_dim for head in shard.heads)
    yield (
        f"{name}.o_proj.weight",
        TensorRule(
            (hidden, heads * spec.v_head_dim),
            f"{weights}.o",
            source=(slice(None), slice(first, last)),
        ),
    )
    for part in ("q", "k", "v"):
        for kind in ("scale", "offset"):
            yield f"{name}.fa_{part}.{kind}", CacheScaleRule((heads,), "", optional=True)
    # Some conversions store the frequencies, which follow from the config.
    yield (
        f"{name}.rotary_emb.inv_freq",
        CheckedRule((spec.qk_rope_head_dim // 2,), "", optional=True),
    )


def _vocab(spec: DeepseekV3Spec, shard: Shard, param: str, *, optional: bool = False) -> TensorRule:
    start, stop = shard.vocabulary
    return TensorRule(
        (spec.vocab_size, spec.hidden_size),
        param,
        (slice(0, stop - start),),
        (slice(start, stop),),
        optional=optional,
    )


def _layer(
    architecture: Architecture,
    spec: DeepseekV3Spec,
    shard: Shard,
    layer: int,
    name: str,
    param: str,
) -> Rules:
    hidden = spec.hidden_size
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.{norm}.weight", TensorRule((hidden,), f"{param}.{norm}")
    yield from architecture.rules(spec, shard, layer, f"{name}.self_attn", f"{param}.self_attn")
    mlp, target = f"{name}.mlp", f"{param}.mlp"
    if spec.is_dense_layer(layer):
        for _, name_of, rule in _network(hidden, spec.intermediate_size, shard.dense, target):
            yield f"{mlp}.{name_of}.weight", rule
        return
    experts, inter = spec.n_routed_experts, spec.moe_intermediate_size
    yield f"{mlp}.gate.weight", TensorRule((experts, hidden), f"{target}.gate")
    if spec.has_router_bias:
        yield (
            f"{mlp}.gate.e_score_correction_bias",
            TensorRule((experts,), f"{target}.gate_bias"),
        )
    for e in range(experts):
        routed = _network(hidden, inter, shard.intermediate, f"{target}.experts")
        for tensor, name_of, rule in routed:
            yield (
                f"{mlp}.experts.{e}.{name_of}.weight",
                ExpertRule(rule.shape, rule.param, source=rule.source, expert=e, tensor=tensor),
            )
    if spec.n_shared_experts:
        whole = inter * spec.n_shared_experts
        shared = _network(hidden, whole, shard.shared, f"{target}.shared_experts")
        for _, name_of, rule in shared:
            yield f"{mlp}.shared_experts.{name_of}.weight", rule


def _network(
    hidden: int, inter: int, part: tuple[int, int], param: str
) -> Iterator[tuple[str, str, TensorRule]]:
    """Rules of one gated network, of which this rank has some channels, by both its names."""
    local = part[1] - part[0]
    rows = (slice(*part),)
    for tensor, name, first in (("w1", "gate_proj", 0), ("w3", "up_proj", local)):
        target = (slice(first, first + local),)
        yield tensor, name, TensorRule((inter, hidden), f"{param}.w13", target, rows)
    down = TensorRule((hidden, inter), f"{param}.w2", source=(slice(None), *rows))
    yield "w2", "down_proj", down
