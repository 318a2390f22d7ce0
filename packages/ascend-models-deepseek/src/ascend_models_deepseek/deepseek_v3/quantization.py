"""How checkpoints of DeepSeek-V3 and its kin are quantised: what the models add to descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascend_ops_core.quantized_weights import LayerRules, QuantizationResolver, read_modelslim

__all__ = ["LAYER_RULES", "resolver_of"]

_FLOAT = (
    r"(^|\.)(embed_tokens|lm_head|eh_proj)$",
    r"\.shared_head\.head$",
    r"\.mlp\.gate$",
    r"\.indexer\.weights_proj$",
)

LAYER_RULES = LayerRules(
    kept=_FLOAT,
    # Attention multiplies parts of the first into queries and results; the second is one product
    # with weights_proj.
    dequantized=(*_FLOAT, r"\.kv_b_proj$", r"\.indexer\.wk$"),
    experts=r"\.mlp\.experts\.\d+\.",
    scale="weight_scale_inv",
    packed={
        "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    },
)
"""What no checkpoint quantises, what the models hold in their dtype, and what they compute as one
(sources: vLLM 0.27.1's ``models/deepseek_v2.py``, and the names in DeepSeek's own files)."""


def resolver_of(config: Mapping[str, Any], directory: Path) -> QuantizationResolver:
    """The resolver of a checkpoint.

    Args:
        config: its ``config.json``.
        directory: where ModelSlim's description may lie beside it.

    Raises:
        InvalidInputError: a format that is not known, or a description that cannot be read.
    """
    return QuantizationResolver.of(config, LAYER_RULES, read_modelslim(directory))
