"""Tells vLLM that models of this stack read quantised checkpoints themselves.

vLLM looks at ``quantization_config`` before it builds a model, and refuses methods and dtypes that
its own layers lack. For the models named here it gets a method of ours instead, which quantises no
layer of vLLM's: the model asks :class:`ascend_ops_core.quantized_weights.QuantizationResolver`.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.quantization import (
    QUANTIZATION_METHODS,
    register_quantization_config,
)
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

__all__ = ["METHOD", "CheckpointQuantization", "serve_quantized"]

METHOD = "ascend"
_served: set[str] = set()


class CheckpointQuantization(QuantizationConfig):
    """The checkpoint's own description, unread.

    Args:
        given: ``quantization_config``.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.given = given

    @classmethod
    def get_name(cls) -> Any:
        """Name of the method in vLLM."""
        return METHOD

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        """Dtypes of models."""
        return [torch.float32, torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        """Of CUDA devices, which this is not for."""
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        """Files beside ``config.json``: none, models look for ModelSlim's themselves."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CheckpointQuantization:
        """From ``quantization_config``, whose content is checked by the model."""
        return cls(config)

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: Any, user_quant: Any, hf_config: Any = None
    ) -> Any:
        """Ours for the models that :func:`serve_quantized` named, else vLLM's choice."""
        return METHOD if getattr(hf_config, "model_type", None) in _served else None

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> None:
        """None: what vLLM's layers hold in these models is not quantised."""


def serve_quantized(*model_types: str) -> None:
    """Let models of these types read quantised checkpoints; may be called any number of times."""
    _served.update(model_types)
    if METHOD not in QUANTIZATION_METHODS:
        register_quantization_config(METHOD)(CheckpointQuantization)
