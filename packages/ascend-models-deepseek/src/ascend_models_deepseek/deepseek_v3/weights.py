"""DeepSeek-V3's checkpoint: which tensors it has, and where each goes in the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ascend_models_deepseek.deepseek_v3.config import DeepseekV3Spec
from ascend_models_deepseek.deepseek_v3.sharding import Shard
from ascend_models_deepseek.deepseek_v4.weights import TensorRule, WeightTable

if TYPE_CHECKING:
    from ascend_models_deepseek.deepseek_v3.architecture import Architecture

__all__ = ["TensorRule", "WeightTable", "attention_rules", "main_table", "mtp_table"]

Rules = Iterator[tuple[str, TensorRule]]


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
    # Some conversions store the frequencies, which follow from the config.
    yield (
        f"{name}.rotary_emb.inv_freq",
        TensorRule((spec.qk_rope_head_dim // 2,), "", optional=True, kept=False),
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
        yield from _network(hidden, spec.intermediate_size, shard.dense, mlp, target, ())
        return
    experts, inter = spec.n_routed_experts, spec.moe_intermediate_size
    yield f"{mlp}.gate.weight", TensorRule((experts, hidden), f"{target}.gate")
    if spec.has_router_bias:
        yield (
            f"{mlp}.gate.e_score_correction_bias",
            TensorRule((experts,), f"{target}.gate_bias"),
        )
    held = range(*shard.experts)
    for e in range(experts):
        place = (held.index(e),) if e in held else None
        yield from _network(
            hidden, inter, shard.intermediate, f"{mlp}.experts.{e}", f"{target}.experts", place
        )
    if spec.n_shared_experts:
        yield from _network(
            hidden,
            inter * spec.n_shared_experts,
            shard.shared,
            f"{mlp}.shared_experts",
            f"{target}.shared_experts",
            (),
        )


def _network(
    hidden: int,
    inter: int,
    part: tuple[int, int],
    name: str,
    param: str,
    place: tuple[int, ...] | None,
) -> Rules:
    """Rules of one gated MLP; ``place`` is that among a rank's experts, None for another rank's."""
    kept = place is not None
    at, local = place or (), part[1] - part[0]
    rows = (slice(*part),)
    for weight, first in (("gate_proj", 0), ("up_proj", local)):
        target: tuple[int | slice, ...] = (*at, slice(first, first + local))
        yield (
            f"{name}.{weight}.weight",
            TensorRule((inter, hidden), f"{param}.w13", target, rows, kept=kept),
        )
    yield (
        f"{name}.down_proj.weight",
        TensorRule(
            (hidden, inter), f"{param}.w2", (*at, slice(None)), (slice(None), *rows), kept=kept
        ),
    )
