"""How checkpoints of MiniMax-M3 are quantised: what the model adds to their description."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascend_ops_core.quantized_weights import LayerRules, QuantizationResolver, read_modelslim

from ascend_models_minimax.minimax_m3.config import MiniMaxM3Spec
from ascend_models_minimax.minimax_m3.weights import VISION_PREFIXES, layer_name

__all__ = ["LAYER_RULES", "layers_apart", "resolver_of"]

_FLOAT = (
    r"(^|\.)(embed_tokens|lm_head|eh_proj)$",
    r"\.block_sparse_moe\.gate$",
    *(rf"^{prefix[:-1]}\." for prefix in VISION_PREFIXES),
)

LAYER_RULES = LayerRules(
    kept=_FLOAT,
    dequantized=_FLOAT,
    experts=r"\.block_sparse_moe\.experts\.\d+\.",
    scale="weight_scale_inv",
    packed={
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "indexer_proj": ("index_q_proj", "index_k_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    },
    renames=((r"^language_model\.", ""), (r"^language_model\.model\.", "model.language_model.")),
)
"""What no checkpoint quantises, what the model holds in its dtype, and what it computes as one
(sources: vLLM 0.27.1's ``models/minimax_m3``, and the published names)."""

_QKV, _INDEX = ("q_proj", "k_proj", "v_proj"), ("index_q_proj", "index_k_proj")


def resolver_of(config: Mapping[str, Any], directory: Path) -> QuantizationResolver:
    """The resolver of a checkpoint.

    Args:
        config: its ``config.json``.
        directory: where ModelSlim's description may lie beside it.

    Raises:
        InvalidInputError: a format that is not known, or a description that cannot be read.
    """
    return QuantizationResolver.of(config, LAYER_RULES, read_modelslim(directory))


def layers_apart(spec: MiniMaxM3Spec, resolver: QuantizationResolver, root: str) -> frozenset[int]:
    """Layers whose index projections are stored otherwise than queries, keys and values.

    Projections that disagree in any other way are left together, where they are a problem that is
    reported with their names.

    Args:
        spec: the model's config.
        resolver: of the checkpoint.
        root: in front of all names of the checkpoint.
    """
    apart = set()
    for layer in range(spec.num_hidden_layers + spec.num_mtp_layers):
        if not spec.is_sparse_layer(layer):
            continue
        name = layer_name(spec, layer, root)
        qkv, index = (
            {resolver.scheme(f"{name}.self_attn.{one}") for one in parts}
            for parts in (_QKV, _INDEX)
        )
        if len(qkv) == len(index) == 1 and qkv != index:
            apart.add(layer)
    return frozenset(apart)
