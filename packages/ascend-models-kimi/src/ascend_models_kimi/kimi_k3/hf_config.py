"""The config class that vLLM loads Kimi-K3's ``model_type`` with.

vLLM 0.27.1's class reads the text model's keys with its own class, which fills in figures for keys
that are absent; see :mod:`ascend_models_kimi.kimi_linear.hf_config`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from vllm.transformers_utils.configs.kimi_k3 import KimiK3Config

from ascend_models_kimi.kimi_linear.hf_config import AscendKimiLinearConfig


class AscendKimiK3Config(KimiK3Config):
    """The whole model's keys; the text model's are in ``text_config``."""

    # The name under which vLLM's drafts look for the token of images.
    attribute_map: ClassVar[dict[str, str]] = {"image_token_index": "media_placeholder_token_id"}

    def __init__(self, text_config: Any = None, **given: Any) -> None:
        if not isinstance(text_config, AscendKimiLinearConfig):
            text_config = AscendKimiLinearConfig(**(text_config or {}))
        super().__init__(text_config=text_config, **given)
