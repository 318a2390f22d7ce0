"""Qwen3-Next's config as planning and checking read it; vLLM's own model serves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ascend_ops_core.checkpoint.config_reader import FIX_CONFIG, ConfigReader, as_number
from ascend_ops_core.errors import InvalidInputError

__all__ = ["MODEL_TYPES", "Qwen3NextSpec"]

MODEL_TYPES = ("qwen3_next",)
_KINDS = ("linear_attention", "full_attention")


@dataclass(frozen=True)
class Qwen3NextSpec:
    """What planning reads from a config, validated.

    Attributes have the published config's names, or those that other models have for the same.
    ``delta_layers`` and ``moe_layers`` say of every main layer whether its attention is Gated
    DeltaNet and whether it has experts; ``shared_intermediate_size`` is that of the shared expert.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_mtp_layers: int
    max_position_embeddings: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    delta_layers: tuple[bool, ...]
    moe_layers: tuple[bool, ...]
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_intermediate_size: int
    draft_has_experts: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read ``config.json``.

        Raises:
            InvalidInputError: it describes no model that can be served.
        """
        read = ConfigReader(config, "Qwen3-Next")
        if config.get("quantization_config"):
            raise InvalidInputError(
                "quantization_config in config.json",
                "Qwen3-Next is served by vLLM's own model, whose quantised products have no "
                "kernels here",
                "Plan and serve the checkpoint in bfloat16.",
            )
        layers = read.integer("num_hidden_layers", least=1)
        experts = read.integer("num_experts", 0)
        visited = read.integer("num_experts_per_tok", 0 if not experts else None)
        if experts and not 1 <= visited <= experts:
            raise InvalidInputError(
                f"num_experts_per_tok={visited} of num_experts={experts}",
                "a token visits 1 to all experts",
                FIX_CONFIG,
            )
        key_heads = read.integer("linear_num_key_heads", least=1)
        value_heads = read.integer("linear_num_value_heads", least=1)
        if value_heads % key_heads:
            raise InvalidInputError(
                f"linear_num_value_heads={value_heads}",
                f"the linear_num_key_heads={key_heads} share them evenly",
                FIX_CONFIG,
            )
        head_dim = read.integer("head_dim", least=2)
        moe = _moe_layers(read, layers, experts)
        return cls(
            vocab_size=read.integer("vocab_size", least=1),
            hidden_size=read.integer("hidden_size", least=1),
            intermediate_size=read.integer("intermediate_size", least=1),
            num_hidden_layers=layers,
            num_mtp_layers=read.integer("num_nextn_predict_layers", 1),
            max_position_embeddings=read.integer("max_position_embeddings", least=1),
            num_attention_heads=read.integer("num_attention_heads", least=1),
            num_key_value_heads=read.integer("num_key_value_heads", least=1),
            head_dim=head_dim,
            rotary_dim=_rotary_dim(read, head_dim),
            linear_num_key_heads=key_heads,
            linear_num_value_heads=value_heads,
            linear_key_head_dim=read.integer("linear_key_head_dim", least=1),
            linear_value_head_dim=read.integer("linear_value_head_dim", least=1),
            linear_conv_kernel_dim=read.integer("linear_conv_kernel_dim", 4, least=2),
            delta_layers=_delta_layers(read, layers),
            moe_layers=moe,
            n_routed_experts=experts,
            num_experts_per_tok=visited,
            moe_intermediate_size=read.integer("moe_intermediate_size", 0 if not experts else None),
            shared_intermediate_size=read.integer("shared_expert_intermediate_size", 0),
            # vLLM counts the draft's one layer as the first of a model.
            draft_has_experts=moe[0],
        )

    def is_delta_layer(self, layer: int) -> bool:
        """Whether a layer has Gated DeltaNet; drafts, which come after the main ones, never do."""
        return layer < self.num_hidden_layers and self.delta_layers[layer]

    @property
    def n_shared_experts(self) -> int:
        """Shared experts of a layer, in widths of a routed one."""
        inter = self.moe_intermediate_size
        return -(-self.shared_intermediate_size // inter) if inter else 0


def _moe_layers(read: ConfigReader, layers: int, experts: int) -> tuple[bool, ...]:
    every = read.integer("decoder_sparse_step", 1, least=1)
    dense = list(read.get("mlp_only_layers", ()))
    return tuple(experts > 0 and i not in dense and (i + 1) % every == 0 for i in range(layers))


def _delta_layers(read: ConfigReader, layers: int) -> tuple[bool, ...]:
    every = read.integer("full_attention_interval", 4, least=1)
    given = read.get("layer_types")
    if given is None:
        given = [_KINDS[(i + 1) % every == 0] for i in range(layers)]
    kinds = list(given)
    if len(kinds) != layers or set(kinds) != set(_KINDS):
        raise InvalidInputError(
            f"layer_types={kinds}",
            f"it names one of {', '.join(_KINDS)} for each of num_hidden_layers={layers}, and "
            "states share one pool of blocks with keys and values, which needs both",
            FIX_CONFIG,
        )
    return tuple(kind == _KINDS[0] for kind in kinds)


def _rotary_dim(read: ConfigReader, head_dim: int) -> int:
    given = read.get("rope_parameters", {})
    share = given.get("partial_rotary_factor") if isinstance(given, Mapping) else None
    share = read.get("partial_rotary_factor", 0.25) if share is None else share
    return int(head_dim * as_number("partial_rotary_factor", share))
