"""MiniMax-M3's checkpoint: which tensors the text model has, and where each goes."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from ascend_attention.layers.qkv_indexer import QKVIndexerShape
from ascend_fused_moe.layers.expert_rule import ExpertRule
from ascend_ops_core.checkpoint.table import TensorRule, WeightTable
from torch import nn

from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.sharding import Shard, qkv_shape

Rules = Iterator[tuple[str, TensorRule]]

VISION_PREFIXES = ("vision_tower.", "multi_modal_projector.", "patch_merge_mlp.")
"""Names of the tensors of the vision tower and of what follows it."""

_DRAFT = ".transformer_layer"


def text_root(config: Any) -> str:
    """What stands in front of the text model's names in a checkpoint.

    Args:
        config: of the whole model, or of the text model alone.
    """
    return "language_model." if getattr(config, "text_config", None) is not None else ""


@dataclass(frozen=True)
class GemmaNormRule(TensorRule):
    """The weight of a norm that multiplies by one more than it, which is what the model keeps.

    The sum is made in float32, as such norms are computed, so nothing is rounded.
    """

    def load(self, tensor: torch.Tensor, model: nn.Module) -> None:
        """Copy ``1 + tensor`` to its place in ``model``."""
        model.get_parameter(self.param).data.copy_(tensor.float() + 1)


def main_table(
    spec: MiniMaxM3Spec,
    shard: Shard,
    root: str = "",
    module: str = "",
    *,
    apart: Container[int] = (),
) -> WeightTable:
    """Tensors of the text model, embedding and head included.

    Args:
        spec: the model's config.
        shard: this rank's part.
        root: in front of all names of the checkpoint: ``language_model.`` where it also has
            images.
        module: in front of all names of parameters.
        apart: layers whose index projections are a product of their own.
    """
    return WeightTable(
        dict(text_rules(spec, shard, root, module, apart)),
        (f"{root}model.mtp.", *(VISION_PREFIXES if root else ())),
    )


def text_rules(
    spec: MiniMaxM3Spec, shard: Shard, root: str, module: str, apart: Container[int]
) -> Rules:
    """Rules of :func:`main_table`."""
    for name in ("model.embed_tokens", "lm_head"):
        yield f"{root}{name}.weight", _vocab(spec, shard, f"{module}{name}.weight")
    yield f"{root}model.norm.weight", GemmaNormRule((spec.hidden_size,), f"{module}model.norm")
    for layer in range(spec.num_hidden_layers):
        name = f"model.layers.{layer}"
        yield from _layer(spec, shard, layer, root + name, module + name, apart)


def mtp_table(
    spec: MiniMaxM3Spec, shard: Shard, root: str = "", *, apart: Container[int] = ()
) -> WeightTable:
    """Tensors of the draft layers, whose embedding and head are the main model's.

    Arguments are those of :func:`main_table`.
    """
    hidden = spec.hidden_size
    rules: dict[str, TensorRule] = {}
    for i in range(spec.num_mtp_layers):
        layer = spec.num_hidden_layers + i
        name, param = layer_name(spec, layer, root).removesuffix(_DRAFT), f"model.layers.{layer}"
        rules.update(_layer(spec, shard, layer, name + _DRAFT, param + _DRAFT, apart))
        for norm in ("enorm", "hnorm", "final_layernorm"):
            rules[f"{name}.{norm}.weight"] = GemmaNormRule((hidden,), f"{param}.{norm}")
        rules[f"{name}.eh_proj.weight"] = TensorRule((hidden, 2 * hidden), f"{param}.eh_proj")
    mains = tuple(f"{root}model.{part}." for part in ("layers", "embed_tokens", "norm"))
    return WeightTable(rules, (*mains, f"{root}lm_head.", *VISION_PREFIXES))


def _vocab(spec: MiniMaxM3Spec, shard: Shard, param: str) -> TensorRule:
    start, stop = shard.vocabulary
    shape = (spec.vocab_size, spec.hidden_size)
    return TensorRule(shape, param, (slice(0, stop - start),), (slice(start, stop),))


def layer_name(spec: MiniMaxM3Spec, layer: int, root: str = "") -> str:
    """What the names of a layer's tensors begin with in a checkpoint.

    Args:
        spec: the model's config.
        layer: number of the layer, MTP layers after the main ones.
        root: see :func:`main_table`.
    """
    if layer < spec.num_hidden_layers:
        return f"{root}model.layers.{layer}"
    return f"{root}model.mtp.layers.{layer - spec.num_hidden_layers}{_DRAFT}"


def param_name(spec: MiniMaxM3Spec, layer: int) -> str:
    """Name of a decoder layer's module in the model; a draft holds its own beside norms."""
    return f"model.layers.{layer}{_DRAFT if layer >= spec.num_hidden_layers else ''}"


def _layer(
    spec: MiniMaxM3Spec, shard: Shard, layer: int, name: str, param: str, apart: Container[int]
) -> Rules:
    hidden = spec.hidden_size
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.{norm}.weight", GemmaNormRule((hidden,), f"{param}.{norm}")
    shape = qkv_shape(spec, layer, shard.size, shard.rank, index_apart=layer in apart)
    yield from _attention(shape, f"{name}.self_attn", f"{param}.self_attn")
    if spec.is_moe_layer(layer):
        yield from _moe(spec, shard, f"{name}.block_sparse_moe", f"{param}.block_sparse_moe")
        return
    parts = _network(hidden, spec.dense_intermediate_size, shard.dense, f"{param}.mlp")
    for _, proj, rule in parts:
        yield f"{name}.mlp.{proj}.weight", rule


def _attention(shape: QKVIndexerShape, name: str, param: str) -> Rules:
    hidden = shape.hidden_size
    for proj, part in shape.parts.items():
        module = "qkv_proj" if proj in shape.qkv_parts else "indexer_proj"
        yield (
            f"{name}.{proj}_proj.weight",
            TensorRule(
                (part.total, hidden),
                f"{param}.{module}.weight",
                (slice(*part.target),),
                (slice(*part.source),),
            ),
        )
        if proj != "v":
            yield f"{name}.{proj}_norm.weight", GemmaNormRule((part.width,), f"{param}.{proj}_norm")
    columns = shape.parts["q"]
    yield (
        f"{name}.o_proj.weight",
        TensorRule(
            (hidden, columns.total),
            f"{param}.o_proj",
            source=(slice(None), slice(*columns.source)),
        ),
    )


def _moe(spec: MiniMaxM3Spec, shard: Shard, name: str, param: str) -> Rules:
    hidden, experts, inter = spec.hidden_size, spec.num_local_experts, spec.intermediate_size
    yield f"{name}.gate.weight", TensorRule((experts, hidden), f"{param}.gate")
    if spec.use_routing_bias:
        bias = TensorRule((experts,), f"{param}.e_score_correction_bias")
        yield f"{name}.e_score_correction_bias", bias
    for e in range(experts):
        routed = _network(hidden, inter, shard.intermediate, f"{param}.experts")
        for tensor, _, rule in routed:
            yield (
                f"{name}.experts.{e}.{tensor}.weight",
                ExpertRule(rule.shape, rule.param, source=rule.source, expert=e, tensor=tensor),
            )
    if spec.shared_intermediate_size:
        width = spec.shared_intermediate_size
        for _, proj, rule in _network(hidden, width, shard.shared, f"{param}.shared_experts"):
            yield f"{name}.shared_experts.{proj}.weight", rule


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
