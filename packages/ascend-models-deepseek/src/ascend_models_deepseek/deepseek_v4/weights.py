"""DeepSeek-V4's checkpoint: which tensors it has, and where each goes in the model."""

from __future__ import annotations

from collections.abc import Iterator

from ascend_attention.caches import overlap_of
from ascend_fused_moe.layers.expert_rule import ExpertRule
from ascend_ops_core.checkpoint.table import (
    TensorRule,
    WeightTable,
)

from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.sharding import Shard

__all__ = [
    "NOT_MTP",
    "hc_head_rules",
    "layer_rules",
    "main_table",
    "mtp_table",
    "vocabulary_rule",
]

NOT_MTP = ("layers.", "embed.", "head.", "norm.", "hc_head_")
"""Prefixes of the main model's tensors, which a draft leaves to it."""


def main_table(spec: DeepseekV4Spec, shard: Shard) -> WeightTable:
    """Tensors of the main model, embedding and head included."""
    rules = {
        "embed.weight": vocabulary_rule(spec, shard, "model.embed_tokens.weight"),
        "head.weight": vocabulary_rule(spec, shard, "lm_head.weight"),
        "norm.weight": TensorRule((spec.hidden_size,), "model.norm"),
    }
    rules.update(hc_head_rules(spec, "", "model.hc_head"))
    for layer in range(spec.num_hidden_layers):
        rules.update(layer_rules(spec, shard, layer, f"layers.{layer}", f"model.layers.{layer}"))
    return WeightTable(rules, ("mtp.",))


def mtp_table(spec: DeepseekV4Spec, shard: Shard) -> WeightTable:
    """Tensors of the MTP draft. Its embedding and head default to the main model's."""
    hidden = spec.hidden_size
    rules: dict[str, TensorRule] = {}
    for i in range(spec.num_mtp_layers):
        layer = spec.num_hidden_layers + i
        name, param = f"mtp.{i}", f"model.layers.{layer}"
        rules.update(layer_rules(spec, shard, layer, name, f"{param}.block"))
        rules.update(hc_head_rules(spec, f"{name}.", f"{param}.hc_head"))
        for norm in ("enorm", "hnorm", "norm"):
            rules[f"{name}.{norm}.weight"] = TensorRule((hidden,), f"{param}.{norm}")
        for proj in ("e_proj", "h_proj"):
            rules[f"{name}.{proj}.weight"] = TensorRule((hidden, hidden), f"{param}.{proj}")
        if i == 0:
            rules[f"{name}.emb.tok_emb.weight"] = vocabulary_rule(
                spec, shard, "model.embed_tokens.weight", optional=True
            )
            rules[f"{name}.head.weight"] = vocabulary_rule(
                spec, shard, "lm_head.weight", optional=True
            )
    return WeightTable(rules, NOT_MTP)


def vocabulary_rule(
    spec: DeepseekV4Spec, shard: Shard, param: str, optional: bool = False
) -> TensorRule:
    """Where this rank's rows of an embedding or a head go."""
    start, stop = shard.vocabulary
    return TensorRule(
        (spec.vocab_size, spec.hidden_size),
        param,
        (slice(0, stop - start),),
        (slice(start, stop),),
        optional=optional,
    )


def hc_head_rules(spec: DeepseekV4Spec, name: str, param: str) -> Iterator[tuple[str, TensorRule]]:
    """Of the final collapse of the streams; ``name`` is in front of the tensors' names."""
    n = spec.hc_mult
    yield f"{name}hc_head_fn", TensorRule((n, n * spec.hidden_size), f"{param}.fn")
    yield f"{name}hc_head_scale", TensorRule((1,), f"{param}.scale")
    yield f"{name}hc_head_base", TensorRule((n,), f"{param}.base")


def layer_rules(
    spec: DeepseekV4Spec, shard: Shard, layer: int, name: str, param: str
) -> Iterator[tuple[str, TensorRule]]:
    """Of a decoder layer."""
    n, hidden = spec.hc_mult, spec.hidden_size
    mixes = (2 + n) * n
    for part in ("attn", "ffn"):
        yield f"{name}.{part}_norm.weight", TensorRule((hidden,), f"{param}.{part}_norm")
        hc = f"{name}.hc_{part}"
        yield f"{hc}_fn", TensorRule((mixes, n * hidden), f"{param}.hc_{part}.fn")
        yield f"{hc}_scale", TensorRule((3,), f"{param}.hc_{part}.scale")
        yield f"{hc}_base", TensorRule((mixes,), f"{param}.hc_{part}.base")
    yield from _attention(spec, shard, layer, f"{name}.attn", f"{param}.attn")
    yield from _moe(spec, shard, layer, f"{name}.ffn", f"{param}.ffn")


def _attention(
    spec: DeepseekV4Spec, shard: Shard, layer: int, name: str, param: str
) -> Iterator[tuple[str, TensorRule]]:
    hidden, lora, width = spec.hidden_size, spec.q_lora_rank, spec.head_dim
    heads, projection = shard.heads, shard.projection
    fused = f"{param}.wqa_wkv"
    yield f"{name}.wq_a.weight", TensorRule((lora, hidden), fused, (slice(0, lora),))
    yield f"{name}.wkv.weight", TensorRule((width, hidden), fused, (slice(lora, None),))
    yield f"{name}.q_norm.weight", TensorRule((lora,), f"{param}.q_norm")
    yield f"{name}.kv_norm.weight", TensorRule((width,), f"{param}.kv_norm")
    yield (
        f"{name}.wq_b.weight",
        TensorRule(
            (spec.num_attention_heads * width, lora),
            f"{param}.wq_b",
            source=(slice(heads[0] * width, heads[1] * width),),
        ),
    )
    yield (
        f"{name}.attn_sink",
        TensorRule((spec.num_attention_heads,), f"{param}.attn_sink", source=(slice(*heads),)),
    )
    group_in = spec.num_attention_heads // spec.o_groups * width
    group_out = spec.o_lora_rank
    yield (
        f"{name}.wo_a.weight",
        TensorRule(
            (spec.o_groups * group_out, group_in),
            f"{param}.o_proj.wo_a",
            source=(slice(*projection.groups), slice(None), slice(*projection.channels)),
            view=(spec.o_groups, group_out, group_in),
        ),
    )
    yield (
        f"{name}.wo_b.weight",
        TensorRule(
            (hidden, spec.o_groups * group_out),
            f"{param}.o_proj.wo_b",
            source=(slice(None), slice(*projection.latents)),
        ),
    )
    ratio = spec.compress_ratio(layer)
    if ratio:
        yield from _compressor(hidden, width, ratio, f"{name}.compressor", f"{param}.compressor")
    if ratio == 4:
        index = spec.index_n_heads * spec.index_head_dim
        target = f"{param}.indexer"
        yield f"{name}.indexer.wq_b.weight", TensorRule((index, lora), f"{target}.wq_b")
        yield (
            f"{name}.indexer.weights_proj.weight",
            TensorRule((spec.index_n_heads, hidden), f"{target}.weights_proj"),
        )
        yield from _compressor(
            hidden,
            spec.index_head_dim,
            ratio,
            f"{name}.indexer.compressor",
            f"{target}.compressor",
        )


def _compressor(
    hidden: int, width: int, ratio: int, name: str, param: str
) -> Iterator[tuple[str, TensorRule]]:
    series = overlap_of(ratio) * width
    fused = f"{param}.wkv_wgate"
    yield f"{name}.wkv.weight", TensorRule((series, hidden), fused, (slice(0, series),))
    yield f"{name}.wgate.weight", TensorRule((series, hidden), fused, (slice(series, None),))
    yield f"{name}.ape", TensorRule((ratio, series), f"{param}.ape")
    yield f"{name}.norm.weight", TensorRule((width,), f"{param}.norm")


def _moe(
    spec: DeepseekV4Spec, shard: Shard, layer: int, name: str, param: str
) -> Iterator[tuple[str, TensorRule]]:
    hidden, experts = spec.hidden_size, spec.n_routed_experts
    yield f"{name}.gate.weight", TensorRule((experts, hidden), f"{param}.gate")
    if spec.is_hash_layer(layer):
        shape = (spec.vocab_size, spec.num_experts_per_tok)
        yield f"{name}.gate.tid2eid", TensorRule(shape, f"{param}.tid2eid", below=experts)
    else:
        yield f"{name}.gate.bias", TensorRule((experts,), f"{param}.gate_bias")
    routed = spec.moe_intermediate_size
    for e in range(experts):
        for tensor, rule in _ffn(hidden, routed, shard.intermediate, f"{param}.experts"):
            yield (
                f"{name}.experts.{e}.{tensor}.weight",
                ExpertRule(rule.shape, rule.param, source=rule.source, expert=e, tensor=tensor),
            )
    if spec.n_shared_experts:
        shared = routed * spec.n_shared_experts
        part = shard.shared_intermediate
        for tensor, rule in _ffn(hidden, shared, part, f"{param}.shared_experts"):
            yield f"{name}.shared_experts.{tensor}.weight", rule


def _ffn(
    hidden: int, inter: int, part: tuple[int, int], param: str
) -> Iterator[tuple[str, TensorRule]]:
    """Rules of one gated network, of which this rank has some channels."""
    local = part[1] - part[0]
    rows = (slice(*part),)
    for tensor, first in (("w1", 0), ("w3", local)):
        target = (slice(first, first + local),)
        yield tensor, TensorRule((inter, hidden), f"{param}.w13", target, rows)
    yield "w2", TensorRule((hidden, inter), f"{param}.w2", source=(slice(None), *rows))
