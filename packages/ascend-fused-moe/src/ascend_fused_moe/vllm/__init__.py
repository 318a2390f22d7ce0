"""Adaptors to vLLM: a layer's ranks from its groups, routers, the runner, and experts' methods.

Models of this project build their layers from them; :func:`register` is for vLLM's own models.
"""

from __future__ import annotations

from ascend_ops_core.errors import InvalidInputError

_REPLACED = "UnquantizedFusedMoEMethod"


def register() -> None:
    """Put our method in the place of vLLM's on an NPU; may be called any number of times.

    On a CPU vLLM keeps its own, which its kernels for that device need.

    Raises:
        ImportError: vLLM is not installed; the message names the remedy.
        InvalidInputError: somebody else registered a method in the same place.
    """
    try:
        from vllm.model_executor.custom_op import CustomOp, op_registry_oot
    except ImportError as error:
        raise ImportError(
            "ascend_fused_moe.vllm puts experts into vLLM, which is not installed. Install vLLM, "
            "or use ascend_fused_moe without it."
        ) from error
    from vllm.platforms import current_platform

    if current_platform.device_type != "npu":
        return
    from ascend_fused_moe.vllm.methods import VllmUnquantizedFusedMoEMethod

    taken = op_registry_oot.get(_REPLACED)
    if taken is VllmUnquantizedFusedMoEMethod:
        return
    if taken is not None:
        raise InvalidInputError(
            f"vLLM's class {_REPLACED}",
            f"{taken.__module__}.{taken.__qualname__} is registered for it already",
            "Uninstall or disable the other plugin (VLLM_PLUGINS).",
        )
    CustomOp.register_oot(VllmUnquantizedFusedMoEMethod, name=_REPLACED)
