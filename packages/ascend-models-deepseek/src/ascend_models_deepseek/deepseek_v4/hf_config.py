"""The config class that vLLM loads ``model_type: deepseek_v4`` with.

vLLM recognises DeepSeek-V4 by ``compress_ratios``, and transformers' spelling of the layer
schedule fails vLLM's own validation; so transformers' keys are rewritten to the original ones.
"""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from ascend_models_deepseek.deepseek_v4.config import num_hash_layers, ratio_of


class AscendDeepseekV4Config(PretrainedConfig):
    """DeepSeek-V4 with original keys, whatever keys the file had."""

    model_type = "deepseek_v4"

    def __init__(
        self,
        max_position_embeddings: int = 1048576,
        rope_theta: float = 10000.0,
        compress_rope_theta: float = 160000.0,
        **kwargs: Any,
    ) -> None:
        _rewrite_schedule(kwargs)
        # vLLM divides by this number; without it, the refusal is left to our own check.
        if not kwargs.get("num_nextn_predict_layers"):
            kwargs.pop("num_nextn_predict_layers", None)
        main, compress = _split_rope(kwargs)
        self.max_position_embeddings = max_position_embeddings
        self.rope_theta = main.get("rope_theta", rope_theta)
        self.compress_rope_theta = compress.get("rope_theta", compress_rope_theta)
        self.rope_scaling = kwargs.pop("rope_scaling", None) or _scaling_of(compress)
        super().__init__(**kwargs)


def _rewrite_schedule(kwargs: dict[str, Any]) -> None:
    types = kwargs.pop("layer_types", None)
    mlp_types = kwargs.pop("mlp_layer_types", None)
    rates = kwargs.get("compress_rates") or {}
    if kwargs.get("compress_ratios") is None and types is not None:
        kwargs["compress_ratios"] = [
            rates.get(t, ratio_of(t)) if t != "sliding_attention" else 0 for t in types
        ]
    if kwargs.get("num_hash_layers") is None and mlp_types is not None:
        kwargs["num_hash_layers"] = num_hash_layers({"mlp_layer_types": mlp_types})
    factor = kwargs.pop("partial_rotary_factor", None)
    if kwargs.get("qk_rope_head_dim") is None and factor is not None:
        kwargs["qk_rope_head_dim"] = int(kwargs["head_dim"] * factor)


def _split_rope(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    parameters = kwargs.pop("rope_parameters", None) or {}
    if isinstance(parameters.get("main"), dict):
        return parameters["main"], parameters.get("compress") or {}
    # Flat parameters carry the main layers' theta; the compressed branch has a key of its own.
    return {}, {key: value for key, value in parameters.items() if key != "rope_theta"}


def _scaling_of(compress: dict[str, Any]) -> dict[str, Any] | None:
    if compress.get("rope_type", compress.get("type", "default")) == "default":
        return None
    keep = (
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "type",
        "attention_factor",
    )
    scaling = {k: v for k, v in compress.items() if k in keep}
    return {"type": compress.get("rope_type", "yarn"), **scaling}
