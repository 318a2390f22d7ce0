"""DeepSeek-V3's configuration, read from the published keys or from transformers' keys."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from ascend_fused_moe.ops.routing import SCORING_FUNCTIONS
from ascend_ops_core.checkpoint.config_reader import FIX_CONFIG, ConfigReader
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.rotary import YarnScaling

from ascend_models_deepseek.config_reader import YarnRope


@dataclass(frozen=True)
class DeepseekV3Spec:
    """Everything that the model's code reads from a config, validated.

    Attributes follow the published config's names. ``rope_table_scale`` multiplies cosine and sine,
    ``softmax_scale`` dot products, YaRN's ``mscale_all_dim`` included.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_mtp_layers: int
    num_attention_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rope_interleave: bool
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    scoring_func: str
    norm_topk_prob: bool
    routed_scaling_factor: float
    has_router_bias: bool
    first_k_dense_replace: int
    moe_layer_freq: int
    max_position_embeddings: int
    rope_theta: float
    yarn: YarnScaling | None
    rope_table_scale: float
    softmax_scale: float
    rms_norm_eps: float

    @property
    def qk_head_dim(self) -> int:
        """Width of a query head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def is_dense_layer(self, layer: int) -> bool:
        """True when the layer has one MLP instead of experts."""
        return (
            not self.n_routed_experts
            or layer < self.first_k_dense_replace
            or layer % self.moe_layer_freq != 0
        )

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Read a Hugging Face config object or a mapping.

        Raises:
            InvalidInputError: a missing key, or sizes that do not fit together.
        """
        values = cls.read(ConfigReader(config, cls.__name__.removesuffix("Spec")))
        wanted = {field.name for field in fields(cls)}
        spec = cls(**{name: value for name, value in values.items() if name in wanted})
        spec.check()
        return spec

    @classmethod
    def read(cls, read: ConfigReader) -> dict[str, Any]:
        """Values of all attributes; models that add some extend it."""
        _check_kind(read)
        rope = YarnRope(read.rope_parameters())
        nope, rotary = (
            read.integer("qk_nope_head_dim", least=1),
            read.integer("qk_rope_head_dim", least=2),
        )
        experts = read.integer("n_routed_experts", read.get("num_local_experts", 0))
        scoring = read.get("scoring_func", "sigmoid")
        return {
            "vocab_size": read.integer("vocab_size", least=1),
            "hidden_size": read.integer("hidden_size", least=1),
            "intermediate_size": read.integer("intermediate_size", least=1),
            "moe_intermediate_size": read.integer(
                "moe_intermediate_size", 0 if not experts else None
            ),
            "num_hidden_layers": read.integer("num_hidden_layers", least=1),
            "num_mtp_layers": read.integer("num_nextn_predict_layers", 0),
            "num_attention_heads": read.integer("num_attention_heads", least=1),
            "q_lora_rank": read.integer("q_lora_rank", 0) or None,
            "kv_lora_rank": read.integer("kv_lora_rank", least=1),
            "qk_nope_head_dim": nope,
            "qk_rope_head_dim": rotary,
            "v_head_dim": read.integer("v_head_dim", least=1),
            "rope_interleave": bool(read.get("rope_interleave", True)),
            "n_routed_experts": experts,
            "n_shared_experts": read.integer("n_shared_experts", 0),
            "num_experts_per_tok": read.integer("num_experts_per_tok", 0 if not experts else None),
            "n_group": read.integer("n_group", 1) or 1,
            "topk_group": read.integer("topk_group", 1) or 1,
            "scoring_func": scoring,
            "norm_topk_prob": bool(read.get("norm_topk_prob", True)),
            "routed_scaling_factor": read.number("routed_scaling_factor", 1.0),
            "has_router_bias": read.get("topk_method", "noaux_tc") == "noaux_tc",
            "first_k_dense_replace": read.integer("first_k_dense_replace", 0),
            "moe_layer_freq": read.integer("moe_layer_freq", 1, least=1),
            "max_position_embeddings": read.integer("max_position_embeddings", least=1),
            "rope_theta": rope.theta,
            "yarn": rope.scaling,
            "rope_table_scale": rope.table_scale,
            "softmax_scale": (nope + rotary) ** -0.5 * rope.score_scale,
            "rms_norm_eps": read.number("rms_norm_eps", 1e-6),
        }

    def check(self) -> None:
        """Refuse sizes that do not fit together.

        Raises:
            InvalidInputError: the first of them.
        """
        if self.qk_rope_head_dim % 2:
            raise InvalidInputError(
                f"qk_rope_head_dim={self.qk_rope_head_dim}",
                "channels are rotated in pairs",
                FIX_CONFIG,
            )
        if not self.n_routed_experts:
            return
        if self.scoring_func not in SCORING_FUNCTIONS:
            raise InvalidInputError(
                f"scoring_func={self.scoring_func!r}",
                f"known are {', '.join(SCORING_FUNCTIONS)}",
                FIX_CONFIG,
            )
        experts, groups = self.n_routed_experts, self.n_group
        if experts % groups or not 1 <= self.topk_group <= groups:
            raise InvalidInputError(
                f"n_group={groups} and topk_group={self.topk_group}",
                f"groups divide n_routed_experts={experts}, and a token takes 1 to all of them",
                FIX_CONFIG,
            )
        reachable = experts // groups * self.topk_group
        if not 1 <= self.num_experts_per_tok <= reachable:
            raise InvalidInputError(
                f"num_experts_per_tok={self.num_experts_per_tok}",
                f"topk_group={self.topk_group} groups have {reachable} experts",
                FIX_CONFIG,
            )


def _check_kind(read: ConfigReader) -> None:
    """Refuse what the layers do not compute."""
    for key, served in (
        ("attention_bias", False),
        ("hidden_act", "silu"),
        ("tie_word_embeddings", False),
    ):
        given = read.get(key, served)
        if given != served:
            raise InvalidInputError(
                f"{key}={given!r}",
                f"{read.model} is served with {key}={served!r} alone",
                "Serve another checkpoint.",
            )
