"""The config classes that vLLM loads MiniMax-M3's ``model_type`` with.

vLLM 0.27.1's classes fill in the published model's figures for every key that is absent, so that
what a checkpoint says cannot be told from what it leaves out; and vLLM knows none for the text
model alone.
"""

from __future__ import annotations

from typing import Any

from vllm.transformers_utils.configs.minimax_m3 import MiniMaxM3Config, MiniMaxM3TextConfig

_WITHOUT_DEFAULT = (
    "moe_layer_freq",
    "sparse_attention_config",
    "shared_intermediate_size",
    "rotary_dim",
    "partial_rotary_factor",
    "rope_theta",
)


class AscendMiniMaxM3TextConfig(MiniMaxM3TextConfig):
    """The text model's keys, as they are given."""

    model_type = "minimax_m3_text"

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for name in _WITHOUT_DEFAULT:
            if name not in given:
                setattr(self, name, None)


class AscendMiniMaxM3VLTextConfig(AscendMiniMaxM3TextConfig):
    """The same under transformers' name."""

    model_type = "minimax_m3_vl_text"


class AscendMiniMaxM3Config(MiniMaxM3Config):
    """The whole model's keys; the text model's are in ``text_config``."""

    def __init__(self, text_config: Any = None, **given: Any) -> None:
        if not isinstance(text_config, MiniMaxM3TextConfig):
            text_config = AscendMiniMaxM3TextConfig(**(text_config or {}))
        super().__init__(text_config=text_config, **given)
