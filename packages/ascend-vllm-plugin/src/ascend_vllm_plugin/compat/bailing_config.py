"""Reads the config of Ling 2.5 as its authors' class does.

Upstream symbol: ``transformers.BailingHybridConfig`` (5.24). Ling 2.5 and Ling 3 share a
``model_type``, ``bailing_hybrid``, and transformers' class is that of Ling 3: it sets ``head_dim``
to ``qk_rope_head_dim``, with which lightning attention has heads of another width, and renames
what vLLM 0.27.1's model of Ling 2.5 reads.
"""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PretrainedConfig

__all__ = ["ARCHITECTURE", "AscendBailingHybridConfig", "read_ling_configs"]

ARCHITECTURE = "BailingMoeV2_5ForCausalLM"

# Of configuration_bailing_moe_v2_5.py, github.com/inclusionAI/Ring-V2.5: what a config may leave
# out and vLLM's model reads.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 157184,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "use_qkv_bias": False,
    "use_bias": False,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "rope_theta": 600000.0,
    "num_experts": 256,
    "num_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "moe_intermediate_size": 512,
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "use_qk_norm": True,
    "num_nextn_predict_layers": 0,
    "moe_router_enable_expert_bias": True,
    "routed_scaling_factor": 1.0,
    "layer_group_size": 5,
    "group_norm_size": 4,
    "linear_silu": False,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "partial_rotary_factor": 0.5,
    "score_function": "sigmoid",
    "router_dtype": "fp32",
    "tie_word_embeddings": False,
}


class AscendBailingHybridConfig(PretrainedConfig):
    """The keys of Ling 2.5, as they are given; Ling 3 is left to transformers."""

    model_type = "bailing_hybrid"

    def __init__(self, **given: Any) -> None:
        super().__init__(**(_DEFAULTS | given))

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """See transformers; of another architecture a config of transformers' own class."""
        if ARCHITECTURE in (config_dict.get("architectures") or ()):
            return super().from_dict(config_dict, **kwargs)
        from transformers import BailingHybridConfig

        return BailingHybridConfig.from_dict(config_dict, **kwargs)


def read_ling_configs() -> None:
    """Let vLLM and ``AutoConfig`` read configs so; may be called any number of times.

    Raises:
        AttributeError: vLLM has no registry of that name any more.
    """
    from vllm.transformers_utils import config

    name = AscendBailingHybridConfig.model_type
    config._CONFIG_REGISTRY[name] = AscendBailingHybridConfig
    AutoConfig.register(name, AscendBailingHybridConfig, exist_ok=True)
