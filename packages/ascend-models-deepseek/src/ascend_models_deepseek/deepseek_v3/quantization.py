"""How checkpoints of DeepSeek-V3 and its kin are quantised: what the models add to descriptions.

Planning counts such checkpoints; the models load unquantised ones.
"""

from __future__ import annotations

from ascend_ops_core.quantized_weights import LayerRules

__all__ = ["LAYER_RULES"]

LAYER_RULES = LayerRules(
    kept=(
        r"(^|\.)(embed_tokens|lm_head|eh_proj)$",
        r"\.shared_head\.head$",
        r"\.mlp\.gate$",
        r"\.indexer\.weights_proj$",
    ),
    experts=r"\.mlp\.experts\.\d+\.",
    scale="weight_scale_inv",
    packed={
        "qkv_a": ("q_a_proj", "kv_a_proj_with_mqa"),
        "w13": ("gate_proj", "up_proj"),
    },
)
"""What no checkpoint quantises, and what the model computes as one (sources: vLLM 0.27.1's
``models/deepseek_v2.py``, and the names in DeepSeek's own files)."""
