"""How checkpoints of Kimi are quantised: what the models add to descriptions."""

from __future__ import annotations

from typing import Any

from ascend_ops_core.quantized_weights import LayerRules

__all__ = ["LAYER_RULES", "restore_description"]

_NO_EXPERT = r"^(?!.*\.experts\.\d+\.)"

LAYER_RULES = LayerRules(
    kept=(_NO_EXPERT,),
    dequantized=(_NO_EXPERT,),
    experts=r"\.block_sparse_moe\.experts\.\d+\.",
    scale="weight_scale",
    renames=((r"^language_model\.", ""),),
)
"""Only routed experts stay as they are stored: Kimi-K3's checkpoints quantise nothing else, and
what another one does becomes the model's dtype (source: vLLM 0.27.1's ``models/kimi_k3``)."""


def restore_description(config: Any) -> None:
    """Give a checkpoint its own ``quant_method`` back.

    Upstream symbol: ``KimiK3ForConditionalGenerationConfig`` of vLLM 0.27.1, which renames
    compressed-tensors' MXFP4 to choose a kernel of vLLM's; the rest of the description stays.

    Args:
        config: vLLM's config object of the model, changed in place.
    """
    given = getattr(config, "quantization_config", None)
    if (
        isinstance(given, dict)
        and given.get("quant_method") == "mxfp4"
        and "config_groups" in given
    ):
        config.quantization_config = given | {"quant_method": "compressed-tensors"}
