"""How DeepSeek-V4's checkpoints are quantised: what the model adds to their description."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascend_ops_core.quantized_weights import LayerRules, QuantizationResolver, read_modelslim

__all__ = ["LAYER_RULES", "resolver_of"]

_FLOAT = (
    r"^(mtp\.\d+\.)?(embed|head|emb\.tok_emb)$",
    r"\.ffn\.gate$",
    r"\.(markov_head\.markov_w[12]|confidence_head\.proj)$",
    r"\.compressor\.(wkv|wgate)$",
    r"\.indexer\.weights_proj$",
)

LAYER_RULES = LayerRules(
    kept=_FLOAT,
    dequantized=_FLOAT,
    experts=r"\.ffn\.experts\.\d+\.",
    scale="scale",
    packed={"wqa_wkv": ("wq_a", "wkv"), "w13": ("w1", "w3")},
    renames=((r"^", "model."),),
)
"""What no checkpoint quantises, and what the model computes as one (sources: vLLM 0.27.1's
``models/deepseek_v4``, and the names in DeepSeek's own files)."""


def resolver_of(config: Mapping[str, Any], directory: Path) -> QuantizationResolver:
    """The resolver of a checkpoint.

    Args:
        config: its ``config.json``.
        directory: where ModelSlim's description may lie beside it.

    Raises:
        InvalidInputError: a format that is not known, or a description that cannot be read.
    """
    return QuantizationResolver.of(config, LAYER_RULES, read_modelslim(directory))
