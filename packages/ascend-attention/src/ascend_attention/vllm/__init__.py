"""Adaptors to vLLM: cache layers, attention backends, metadata builders, and layers of its own.

The layers of :func:`register` stand in the place of vLLM's on an NPU, some on a CPU as well.
"""

from __future__ import annotations

import importlib
import sys

from ascend_ops_core.errors import InvalidInputError

__all__ = ["register"]

_MODELS = "vllm.model_executor.models"

_LAYERS = "vllm.model_executor.layers"

_EVERYWHERE: tuple[tuple[str, str, str | None], ...] = (
    (
        "BailingMoELinearAttention",
        "linear.bailing:AscendBailingMoELinearAttention",
        f"{_LAYERS}.mamba.linear.bailing_linear_attn",
    ),
    (
        "MultiHeadLatentAttentionWrapper",
        "mla.wrapper:AscendMultiHeadLatentAttentionWrapper",
        f"{_LAYERS}.mla",
    ),
    (
        "QwenGatedDeltaNetAttention",
        "linear.gdn:AscendGatedDeltaNetAttention",
        f"{_LAYERS}.mamba.gdn.qwen_gdn_linear_attn",
    ),
)
_ON_NPU: tuple[tuple[str, str, str | None], ...] = (
    (
        "CustomQwen2Decoder",
        "qwen2_decoder:AscendCustomQwen2Decoder",
        f"{_MODELS}.deepencoder2",
    ),
    ("MMEncoderAttention", "encoder:AscendMMEncoderAttention", None),
    ("RelPosAttention", "relative_position:AscendRelPosAttention", f"{_MODELS}.deepencoder"),
)
"""Name of vLLM's class, ``module:class`` of ours in this folder, and the module that the class
belongs to, where that takes seconds to import and few models need it."""


def register() -> None:
    """Register every class that this platform takes; may be called any number of times.

    A class of a module that few models need is registered once that is imported, before the model
    is built.

    Raises:
        ImportError: vLLM is not installed; the message names the remedy.
        InvalidInputError: somebody else registered a class under one of the names.
    """
    try:
        from vllm.model_executor.custom_op import op_registry_oot
    except ImportError as error:
        raise ImportError(
            "ascend_attention.vllm puts layers into vLLM, which is not installed. Install vLLM, or "
            "use ascend_attention.ops without it."
        ) from error
    from vllm.platforms import current_platform

    on_npu = current_platform.device_type == "npu"
    for name, place, imported in _EVERYWHERE + (_ON_NPU if on_npu else ()):
        if imported is not None and imported not in sys.modules:
            continue
        module, _, attribute = place.partition(":")
        ours = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
        taken = op_registry_oot.get(name)
        if taken not in (None, ours):
            raise InvalidInputError(
                f"vLLM's class {name}",
                f"{taken.__module__}.{taken.__qualname__} is registered for it already",
                "Uninstall or disable the other plugin (VLLM_PLUGINS).",
            )
        op_registry_oot[name] = ours
