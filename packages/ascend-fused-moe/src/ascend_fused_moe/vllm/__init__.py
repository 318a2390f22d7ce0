"""This package's layer in the place of vLLM's runner of fused experts."""

from __future__ import annotations

import importlib

from ascend_ops_core.errors import InvalidInputError

__all__ = ["register"]

_CLASSES: dict[str, dict[str, str]] = {
    "npu": {
        "MoERunner": "runner:AscendFusedMoERunner",
        "UnquantizedFusedMoEMethod": "method:AscendUnquantizedFusedMoEMethod",
    },
    "cpu": {
        "MoERunner": "cpu:CpuFusedMoERunner",
        "UnquantizedFusedMoEMethod": "cpu:CpuUnquantizedFusedMoEMethod",
    },
}
"""By device type: name of vLLM's class, and ``module:class`` of ours in ``fused_moe``."""


def register() -> None:
    """Register the classes of an NPU or a CPU; may be called any number of times.

    On another device nothing is registered.

    Raises:
        ImportError: vLLM is not installed; the message names the remedy.
        InvalidInputError: somebody else registered a class under one of the names.
    """
    try:
        from vllm.model_executor.custom_op import op_registry_oot
    except ImportError as error:
        raise ImportError(
            "ascend_fused_moe.vllm puts layers into vLLM, which is not installed. Install vLLM, or "
            "use ascend_fused_moe.runner without it."
        ) from error
    from vllm.platforms import current_platform

    for name, place in _CLASSES.get(current_platform.device_type, {}).items():
        module, _, attribute = place.partition(":")
        ours = getattr(importlib.import_module(f"{__name__}.fused_moe.{module}"), attribute)
        taken = op_registry_oot.get(name)
        if taken not in (None, ours):
            raise InvalidInputError(
                f"vLLM's class {name}",
                f"{taken.__module__}.{taken.__qualname__} is registered for it already",
                "Uninstall or disable the other plugin (VLLM_PLUGINS).",
            )
        op_registry_oot[name] = ours
