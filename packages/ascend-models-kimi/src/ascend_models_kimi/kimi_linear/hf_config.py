"""The config class that vLLM loads Kimi's text model with.

vLLM 0.27.1's class fills in figures of its own for keys that are absent: a context of 4096 tokens
for checkpoints that name theirs ``model_max_length``, and latent attention with positions.
"""

from __future__ import annotations

from typing import Any

from vllm.transformers_utils.configs.kimi_linear import KimiLinearConfig

_WITHOUT_DEFAULT = ("mla_use_nope", "max_position_embeddings")


class AscendKimiLinearConfig(KimiLinearConfig):
    """The text model's keys, as they are given."""

    model_type = "kimi_linear"

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for name in _WITHOUT_DEFAULT:
            if name not in given:
                setattr(self, name, None)
