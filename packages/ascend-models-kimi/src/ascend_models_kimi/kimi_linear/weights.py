"""A Kimi checkpoint: which tensors the text model has, and where each goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from ascend_attention.layers.kda import KDAShape
from ascend_fused_moe.layers.expert_rule import ExpertRule
from ascend_ops_core.checkpoint.table import TensorRule, WeightTable
from torch import nn

from ascend_models_kimi.kimi_linear.config import KimiLinearSpec
from ascend_models_kimi.kimi_linear.sharding import Shard

Rules = Iterator[tuple[str, TensorRule]]

VISION_PREFIXES = ("vision_tower.", "mm_projector.")
"""Names of the tensors of the vision tower and of what follows it."""


def text_root(config: Any) -> str:
    """What stands in front of the text model's names in a checkpoint.

    Args:
        config: of the whole model, or of the text model alone.
    """
    return "language_model." if getattr(config, "text_config", None) is not None else ""


@dataclass(frozen=True)
class ReshapedRule(TensorRule):
    """A tensor that checkpoints store in several shapes of as many values.

    Attributes:
        others: further shapes beside ``shape``.
    """

    others: tuple[tuple[int, ...], ...] = ()

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes that the checkpoint may have."""
        return (self.shape, *self.others)

    def load(self, tensor: torch.Tensor, model: nn.Module) -> None:
        """Copy this rank's part of ``tensor``, read in ``shape``."""
        super().load(tensor.reshape(self.shape), model)


class DecayRule(ReshapedRule):
    """A value for each head, which a checkpoint may pad with zeros.

    Kimi-K3 is published with as many values as a head has channels, 128 for 96 heads, the last 32
    of them zero. vLLM 0.27.1 (``a_log_weight_loader``) reads the first ones, as do the conversions
    that were compared with the published model, such as llama.cpp's (pull request 26185).
    """

    def value_problems(self, name: str, tensor: torch.Tensor) -> list[str]:
        """Values behind the heads', which would mean something that is not known here."""
        heads = self.shape[0]
        strange = int(tensor.flatten()[heads:].count_nonzero())
        if not strange:
            return []
        return [f"{name} has {strange} values behind its {heads} heads that are not zero"]

    def load(self, tensor: torch.Tensor, model: nn.Module) -> None:
        """Copy the values of this rank's heads."""
        super().load(tensor.flatten()[: self.shape[0]], model)


class ConvRule(ReshapedRule):
    """Weights of a convolution, which the model keeps with the channels last."""

    def load(self, tensor: torch.Tensor, model: nn.Module) -> None:
        """Copy this rank's channels of ``tensor``, transposed."""
        part = tensor.reshape(self.shape)[self.source].T
        model.get_parameter(self.param).data[self.target].copy_(part)


def main_table(spec: KimiLinearSpec, shard: Shard, root: str = "", module: str = "") -> WeightTable:
    """Tensors of the text model, embedding and head included.

    Args:
        spec: the model's config.
        shard: this rank's part.
        root: in front of all names of the checkpoint: ``language_model.`` where it also has
            images.
        module: in front of all names of parameters.
    """
    first = spec.num_hidden_layers
    drafts = range(first, first + spec.num_mtp_layers)
    return WeightTable(
        dict(text_rules(spec, shard, root, module)),
        (
            *(f"{root}model.layers.{layer}." for layer in drafts),
            *(VISION_PREFIXES if root else ()),
        ),
    )


def text_rules(spec: KimiLinearSpec, shard: Shard, root: str, module: str) -> Rules:
    """Rules of :func:`main_table`."""
    for name in ("model.embed_tokens", "lm_head"):
        yield f"{root}{name}.weight", vocabulary_rule(spec, shard, f"{module}{name}.weight")
    hidden = spec.hidden_size
    yield f"{root}model.norm.weight", TensorRule((hidden,), f"{module}model.norm")
    if spec.attn_res_block_size is not None:
        yield from _mix(spec, f"{root}model.output_attn_res", f"{module}model.output_attn_res")
    for layer in range(spec.num_hidden_layers):
        name = f"model.layers.{layer}"
        mixed = spec.attn_res_block_size is not None
        yield from layer_rules(spec, shard, layer, root + name, module + name, mixed=mixed)


def vocabulary_rule(spec: KimiLinearSpec, shard: Shard, param: str) -> TensorRule:
    """Rule of embedding or head."""
    start, stop = shard.vocabulary
    shape = (spec.vocab_size, spec.hidden_size)
    return TensorRule(shape, param, (slice(0, stop - start),), (slice(start, stop),))


def layer_rules(
    spec: KimiLinearSpec, shard: Shard, layer: int, name: str, param: str, *, mixed: bool
) -> Rules:
    """Rules of one decoder layer.

    Args:
        spec: the model's config.
        shard: this rank's part.
        layer: number of the layer, MTP layers after the main ones.
        name: of the layer in the checkpoint.
        param: of the layer in the model.
        mixed: the layer's inputs are mixed from earlier blocks (Kimi-K3's main layers).
    """
    hidden = spec.hidden_size
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.{norm}.weight", TensorRule((hidden,), f"{param}.{norm}")
    if mixed:
        for mix in ("self_attention_res", "mlp_res"):
            yield from _mix(spec, f"{name}.{mix}", f"{param}.{mix}")
    attention = _delta if spec.is_delta_layer(layer) else _latent
    yield from attention(spec, shard, f"{name}.self_attn", f"{param}.self_attn")
    if spec.is_moe_layer(layer):
        yield from _moe(spec, shard, f"{name}.block_sparse_moe", f"{param}.block_sparse_moe")
        return
    for _, proj, rule in _network(hidden, spec.intermediate_size, shard.dense, f"{param}.mlp"):
        yield f"{name}.mlp.{proj}.weight", rule


def delta_shape(spec: KimiLinearSpec, shard: Shard) -> KDAShape:
    """Sizes of a layer of KDA on one rank."""
    delta = spec.delta
    return KDAShape(
        spec.hidden_size,
        shard.num_delta_heads,
        delta.head_dim,
        delta.conv_width,
        delta.full_rank_gate,
        delta.gate_lower_bound,
    )


def _mix(spec: KimiLinearSpec, name: str, param: str) -> Rules:
    """Norm and logits of a mixing of blocks."""
    hidden = spec.hidden_size
    yield f"{name}_norm.weight", TensorRule((hidden,), f"{param}.norm")
    yield f"{name}_proj.weight", TensorRule((1, hidden), f"{param}.proj", view=(hidden,))


def _delta(spec: KimiLinearSpec, shard: Shard, name: str, param: str) -> Rules:
    """Tensors of KDA, ``name`` ending in ``self_attn``."""
    delta, hidden, param = spec.delta, spec.hidden_size, f"{param}.weights"
    heads, width, rank = shard.delta_heads, delta.width, delta.head_dim
    own = slice(heads[0] * rank, heads[1] * rank)
    first = 0
    for proj, rows in delta_shape(spec, shard).parts.items():
        whole, source = width, own
        if proj in ("f_a", "g_a"):
            whole, source = rank, slice(None)
        elif proj == "b":
            whole, source = delta.num_heads, slice(*heads)
        target = (slice(first, first + rows),)
        rule = TensorRule((whole, hidden), f"{param}.in_proj", target, (source,))
        yield f"{name}.{proj}_proj.weight", rule
        first += rows
    for proj in ("f_b",) if delta.full_rank_gate else ("f_b", "g_b"):
        rule = TensorRule((width, rank), f"{param}.{proj}", source=(own,))
        yield f"{name}.{proj}_proj.weight", rule
    local = own.stop - own.start
    for i, proj in enumerate("qkv"):
        yield (
            f"{name}.{proj}_conv1d.weight",
            ConvRule(
                (width, delta.conv_width),
                f"{param}.conv",
                (slice(None), slice(i * local, (i + 1) * local)),
                (own,),
                others=((width, 1, delta.conv_width),),
            ),
        )
    yield f"{name}.dt_bias", TensorRule((width,), f"{param}.dt_bias", source=(own,))
    padded = ((rank,),) if rank > delta.num_heads else ()
    yield (
        f"{name}.A_log",
        DecayRule(
            (delta.num_heads,),
            f"{param}.a_log",
            source=(slice(*heads),),
            others=((1, 1, delta.num_heads, 1), *padded),
        ),
    )
    yield f"{name}.o_norm.weight", TensorRule((rank,), f"{param}.o_norm")
    yield (
        f"{name}.o_proj.weight",
        TensorRule((hidden, width), f"{param}.o", source=(slice(None), own)),
    )


def _latent(spec: KimiLinearSpec, shard: Shard, name: str, param: str) -> Rules:
    """Tensors of latent attention, ``name`` ending in ``self_attn``."""
    hidden, heads = spec.hidden_size, spec.num_attention_heads
    rank, rows = spec.q_lora_rank or 0, spec.kv_lora_rank + spec.qk_rope_head_dim
    weights = f"{param}.weights"
    query = (heads * spec.qk_head_dim, rank or hidden)
    own = (_channels(shard.heads, spec.qk_head_dim),)
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
    values = _channels(shard.heads, spec.v_head_dim)
    if spec.mla_output_gate:
        gate = TensorRule((heads * spec.v_head_dim, hidden), f"{param}.gate", source=(values,))
        yield f"{name}.g_proj.weight", gate
    yield (
        f"{name}.o_proj.weight",
        TensorRule((hidden, heads * spec.v_head_dim), f"{weights}.o", source=(slice(None), values)),
    )


def _channels(heads: tuple[int, int], width: int) -> slice:
    return slice(heads[0] * width, heads[1] * width)


def _moe(spec: KimiLinearSpec, shard: Shard, name: str, param: str) -> Rules:
    hidden, experts, inter = spec.hidden_size, spec.num_experts, spec.moe_intermediate_size
    yield f"{name}.gate.weight", TensorRule((experts, hidden), f"{param}.gate")
    bias = TensorRule((experts,), f"{param}.e_score_correction_bias")
    yield f"{name}.gate.e_score_correction_bias", bias
    for e in range(experts):
        routed = _network(spec.expert_hidden_size, inter, shard.intermediate, f"{param}.experts")
        for tensor, _, rule in routed:
            yield (
                f"{name}.experts.{e}.{tensor}.weight",
                ExpertRule(rule.shape, rule.param, source=rule.source, expert=e, tensor=tensor),
            )
    if spec.n_shared_experts:
        width = spec.shared_intermediate_size
        for _, proj, rule in _network(hidden, width, shard.shared, f"{param}.shared_experts"):
            yield f"{name}.shared_experts.{proj}.weight", rule
    if spec.routed_hidden_size is None:
        return
    latent = spec.routed_hidden_size
    for tensor, shape in (("down_proj", (latent, hidden)), ("up_proj", (hidden, latent))):
        yield f"{name}.routed_expert_{tensor}.weight", TensorRule(shape, f"{param}.{tensor}")
    if spec.latent_norm:
        yield f"{name}.routed_expert_norm.weight", TensorRule((latent,), f"{param}.norm")


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
