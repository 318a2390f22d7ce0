"""Configuration of Kimi-Linear and of Kimi-K3's text model, read from the published keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ascend_ops_core.checkpoint.config_reader import FIX_CONFIG, ConfigReader, as_number
from ascend_ops_core.errors import InvalidInputError

LOWEST_GATE_BOUND = -5.0
"""Bound of the logarithm of a decay below which vLLM's kernels for Kimi-K3 do not go."""


@dataclass(frozen=True)
class DeltaAttentionSpec:
    """Kimi delta attention (published ``linear_attn_config``).

    Attributes:
        num_heads: heads, each with a state of ``head_dim`` by ``head_dim``.
        head_dim: channels of a head's query, key and value.
        conv_width: tokens that the short convolution sees, the current one included.
        full_rank_gate: the output gate is one projection (Kimi-K3), else two of low rank.
        gate_lower_bound: bound of the logarithm of a channel's decay; None for softplus.
    """

    num_heads: int
    head_dim: int
    conv_width: int
    full_rank_gate: bool
    gate_lower_bound: float | None

    @property
    def width(self) -> int:
        """Channels of all heads."""
        return self.num_heads * self.head_dim


@dataclass(frozen=True)
class KimiLinearSpec:
    """Everything that the text model's code reads from a config, validated.

    Attributes have the published config's names, or those that other models have for the same.
    ``delta_layers`` and ``moe_layers`` say of every main layer whether its attention is KDA and
    whether it has experts. The attributes from ``attn_res_block_size`` on are Kimi-K3's: None,
    False or 1 where a model does without.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_mtp_layers: int
    rms_norm_eps: float
    max_position_embeddings: int
    num_attention_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    delta: DeltaAttentionSpec
    delta_layers: tuple[bool, ...]
    moe_layers: tuple[bool, ...]
    num_experts: int
    num_experts_per_tok: int
    n_shared_experts: int
    moe_intermediate_size: int
    scoring_func: str
    norm_topk_prob: bool
    routed_scaling_factor: float
    n_group: int
    topk_group: int
    attn_res_block_size: int | None
    mla_output_gate: bool
    routed_hidden_size: int | None
    latent_norm: bool
    situ_beta: float | None
    situ_linear_beta: float | None
    logit_scale: float

    @property
    def qk_head_dim(self) -> int:
        """Width of a query head of latent attention."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """Factor on dot products of latent attention."""
        return float(self.qk_head_dim**-0.5)

    @property
    def n_routed_experts(self) -> int:
        """Experts of a layer; 0 where no layer has any."""
        return self.num_experts

    @property
    def shared_intermediate_size(self) -> int:
        """Channels of all shared experts, which are one network."""
        return self.moe_intermediate_size * self.n_shared_experts

    @property
    def expert_hidden_size(self) -> int:
        """Width that routed experts read and write."""
        return self.routed_hidden_size or self.hidden_size

    def is_delta_layer(self, layer: int) -> bool:
        """Whether the layer's attention is KDA; that of drafts, behind the main ones, is not."""
        return layer < self.num_hidden_layers and self.delta_layers[layer]

    def is_moe_layer(self, layer: int) -> bool:
        """Whether the layer has experts; drafts do where any layer does."""
        if layer >= self.num_hidden_layers:
            return self.num_experts > 0
        return self.moe_layers[layer]

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Read a Hugging Face config object or a mapping, of the text model or of the whole one.

        Raises:
            InvalidInputError: a missing key, a value that is not served, or sizes that do not fit
                together.
        """
        outer = ConfigReader(config, "Kimi")
        read = ConfigReader(outer.get("text_config", config), "Kimi")
        _check_kind(read)
        layers = read.integer("num_hidden_layers", least=1)
        delta, delta_layers = _delta(read, layers)
        experts = read.integer("num_experts", 0)
        situ = read.get("hidden_act", "silu") == "situ"
        linear_beta = read.get("activation_situ_linear_beta") if situ else None
        spec = cls(
            vocab_size=read.integer("vocab_size", least=1),
            hidden_size=read.integer("hidden_size", least=1),
            intermediate_size=read.integer("intermediate_size", least=1),
            num_hidden_layers=layers,
            num_mtp_layers=read.integer("num_nextn_predict_layers", 0),
            rms_norm_eps=read.number("rms_norm_eps", 1e-6),
            max_position_embeddings=_longest(read),
            num_attention_heads=read.integer("num_attention_heads", least=1),
            q_lora_rank=_optional(read, "q_lora_rank"),
            kv_lora_rank=read.integer("kv_lora_rank", least=1),
            qk_nope_head_dim=read.integer("qk_nope_head_dim", least=1),
            qk_rope_head_dim=read.integer("qk_rope_head_dim", least=2),
            v_head_dim=read.integer("v_head_dim", least=1),
            delta=delta,
            delta_layers=delta_layers,
            moe_layers=_moe_layers(read, layers, experts),
            num_experts=experts,
            num_experts_per_tok=read.integer("num_experts_per_token", 0 if not experts else None),
            n_shared_experts=read.integer("num_shared_experts", 0),
            moe_intermediate_size=read.integer("moe_intermediate_size", 0 if not experts else None),
            scoring_func=str(read.get("moe_router_activation_func", "sigmoid")),
            norm_topk_prob=bool(read.get("moe_renormalize", True)),
            routed_scaling_factor=read.number("routed_scaling_factor", 1.0),
            n_group=read.integer("num_expert_group", 1, least=1),
            topk_group=read.integer("topk_group", 1, least=1),
            attn_res_block_size=_optional(read, "attn_res_block_size"),
            mla_output_gate=bool(read.get("mla_use_output_gate", False)),
            routed_hidden_size=_optional(read, "routed_expert_hidden_size"),
            latent_norm=bool(read.get("latent_moe_use_norm", False)),
            situ_beta=read.number("activation_situ_beta", 1.0) if situ else None,
            situ_linear_beta=None
            if linear_beta is None
            else as_number("activation_situ_linear_beta", linear_beta),
            logit_scale=read.number("logit_scale", 1.0),
        )
        spec.check()
        return spec

    def check(self) -> None:
        """Refuse sizes that do not fit together.

        Raises:
            InvalidInputError: the first of them.
        """
        if self.qk_rope_head_dim % 2:
            raise InvalidInputError(
                f"qk_rope_head_dim={self.qk_rope_head_dim}",
                "latent attention reads these channels in pairs",
                FIX_CONFIG,
            )
        experts, chosen = self.num_experts, self.num_experts_per_tok
        if experts and not 1 <= chosen <= experts:
            raise InvalidInputError(
                f"num_experts_per_token={chosen} of num_experts={experts}",
                "a token visits 1 to all experts",
                FIX_CONFIG,
            )
        if experts % self.n_group or self.topk_group > self.n_group:
            raise InvalidInputError(
                f"num_expert_group={self.n_group} and topk_group={self.topk_group}",
                f"groups divide num_experts={experts} evenly, and no more are kept than there are",
                FIX_CONFIG,
            )
        if self.latent_norm and self.routed_hidden_size is None:
            raise InvalidInputError(
                "latent_moe_use_norm=True without routed_expert_hidden_size",
                "the norm is that of the experts' own width",
                FIX_CONFIG,
            )
        for name, bound in (
            ("activation_situ_beta", self.situ_beta),
            ("activation_situ_linear_beta", self.situ_linear_beta),
        ):
            if bound is not None and bound <= 0:
                raise InvalidInputError(f"{name}={bound}", "it must be positive", FIX_CONFIG)


def _check_kind(read: ConfigReader) -> None:
    """Refuse what the layers do not compute."""
    for key, *served in (
        ("hidden_act", "silu", "situ"),
        ("moe_router_activation_func", "sigmoid", "softmax"),
        ("tie_word_embeddings", False),
        ("attention_bias", False),
    ):
        given = read.get(key, served[0])
        if given not in served:
            raise InvalidInputError(
                f"{key}={given!r}",
                f"{read.model} is served with {' or '.join(map(repr, served))} alone",
                "Serve another checkpoint.",
            )
    # transformers' model rotates nothing and has no key for it; vLLM's class says False by default.
    if read.get("mla_use_nope") is False:
        raise InvalidInputError(
            "mla_use_nope=False",
            f"latent attention of {read.model} rotates nothing",
            "Set mla_use_nope to true in config.json, if the model was trained so.",
        )


def _optional(read: ConfigReader, key: str) -> int | None:
    return None if read.get(key) is None else read.integer(key, least=1)


def _longest(read: ConfigReader) -> int:
    """Tokens of the longest context; no table of the model ends there."""
    longest = read.get("model_max_length")
    name = "max_position_embeddings" if longest is None else "model_max_length"
    return read.integer(name, 1 << 20, least=1)


def _moe_layers(read: ConfigReader, layers: int, experts: int) -> tuple[bool, ...]:
    first = read.integer("first_k_dense_replace", 0)
    every = read.integer("moe_layer_freq", 1, least=1)
    return tuple(experts > 0 and i >= first and i % every == 0 for i in range(layers))


def _delta(read: ConfigReader, layers: int) -> tuple[DeltaAttentionSpec, tuple[bool, ...]]:
    """KDA and the layers that have it, which a checkpoint counts from one."""
    given = read.get("linear_attn_config", {})
    if not isinstance(given, Mapping):
        raise InvalidInputError(
            f"linear_attn_config={given!r}", "it is an object of named values", FIX_CONFIG
        )
    linear, full = (list(given.get(key) or ()) for key in ("kda_layers", "full_attn_layers"))
    drafts = range(layers + 1, layers + 1 + read.integer("num_nextn_predict_layers", 0))
    numbers = sorted(one for one in (*linear, *full) if one not in drafts)
    if numbers != list(range(1, layers + 1)):
        raise InvalidInputError(
            f"linear_attn_config kda_layers={linear}, full_attn_layers={full}",
            f"each of the layers 1 to num_hidden_layers={layers} stands in one of them, once",
            FIX_CONFIG,
        )
    if not linear or not full:
        raise InvalidInputError(
            f"linear_attn_config kda_layers={linear}, full_attn_layers={full}",
            "states and latents share one pool of blocks, which needs layers of both kinds",
            "Serve another checkpoint.",
        )
    sizes = ConfigReader(given, f"{read.model}'s linear_attn_config")
    bound = given.get("gate_lower_bound")
    if bound is not None:
        bound = as_number("gate_lower_bound", bound)
        if not LOWEST_GATE_BOUND <= bound < 0:
            raise InvalidInputError(
                f"gate_lower_bound={bound}",
                f"the logarithm of a decay is bounded by a number in [{LOWEST_GATE_BOUND}, 0)",
                FIX_CONFIG,
            )
    delta = DeltaAttentionSpec(
        num_heads=sizes.integer("num_heads", least=1),
        head_dim=sizes.integer("head_dim", least=1),
        conv_width=sizes.integer("short_conv_kernel_size", 4, least=2),
        full_rank_gate=bool(given.get("use_full_rank_gate", False)),
        gate_lower_bound=bound,
    )
    return delta, tuple(i + 1 in linear for i in range(layers))
