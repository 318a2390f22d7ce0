"""This package's operators as layers of vLLM, put in the place of vLLM's own.

Our classes derive from vLLM's and override ``forward_oot``, which vLLM calls on an out-of-tree
platform such as the NPU; on a CPU they compute what vLLM's classes compute.
"""

from __future__ import annotations

import importlib

from ascend_ops_core.errors import InvalidInputError

_CLASSES: tuple[tuple[str, str], ...] = (
    ("RMSNorm", "ascend_ops_core.vllm.norm:AscendRMSNorm"),
    ("GemmaRMSNorm", "ascend_ops_core.vllm.norm:AscendGemmaRMSNorm"),
    ("RMSNormGated", "ascend_ops_core.vllm.norm:AscendRMSNormGated"),
    ("FusedRMSNormGated", "ascend_ops_core.vllm.norm:AscendFusedRMSNormGated"),
    ("Conv3dLayer", "ascend_ops_core.vllm.conv3d:AscendConv3dLayer"),
    ("QuantFP8", "ascend_ops_core.vllm.quantization:AscendQuantFP8"),
    ("QuickGELU", "ascend_ops_core.vllm.activation:AscendQuickGELU"),
    ("SiluAndMul", "ascend_ops_core.vllm.activation:AscendSiluAndMul"),
    ("SiluAndMulWithClamp", "ascend_ops_core.vllm.activation:AscendSiluAndMulWithClamp"),
    ("SituAndMul", "ascend_ops_core.vllm.activation:AscendSituAndMul"),
    ("SwigluOAIAndMul", "ascend_ops_core.vllm.activation:AscendSwigluOAIAndMul"),
    ("SwigluStepAndMul", "ascend_ops_core.vllm.activation:AscendSwigluStepAndMul"),
    ("RotaryEmbedding", "ascend_ops_core.vllm.rotary:AscendRotaryEmbedding"),
    ("Llama3RotaryEmbedding", "ascend_ops_core.vllm.rotary:AscendLlama3RotaryEmbedding"),
    ("YaRNScalingRotaryEmbedding", "ascend_ops_core.vllm.rotary:AscendYaRNRotaryEmbedding"),
    (
        "DeepseekScalingRotaryEmbedding",
        "ascend_ops_core.vllm.rotary:AscendDeepseekScalingRotaryEmbedding",
    ),
    ("MRotaryEmbedding", "ascend_ops_core.vllm.rotary:AscendMRotaryEmbedding"),
    ("ApplyRotaryEmb", "ascend_ops_core.vllm.rotary:AscendApplyRotaryEmb"),
)
"""Name of vLLM's class, and ``module:class`` of ours."""

_NPU_CLASSES: tuple[tuple[str, str], ...] = (
    ("ColumnParallelLinear", "ascend_ops_core.vllm.linear:AscendColumnParallelLinear"),
    ("LogitsProcessor", "ascend_ops_core.vllm.embedding:AscendLogitsProcessor"),
    ("MergedColumnParallelLinear", "ascend_ops_core.vllm.linear:AscendMergedColumnParallelLinear"),
    ("ParallelLMHead", "ascend_ops_core.vllm.embedding:AscendParallelLMHead"),
    ("QKVParallelLinear", "ascend_ops_core.vllm.linear:AscendQKVParallelLinear"),
    ("ReplicatedLinear", "ascend_ops_core.vllm.linear:AscendReplicatedLinear"),
    ("RowParallelLinear", "ascend_ops_core.vllm.linear:AscendRowParallelLinear"),
    ("VocabParallelEmbedding", "ascend_ops_core.vllm.embedding:AscendVocabParallelEmbedding"),
)
"""Whole layers, which have no ``forward_oot``: registered on an NPU only, since vLLM's own repack
their weights for the CPU."""


def register() -> None:
    """Register every class that this platform takes; may be called any number of times.

    Raises:
        ImportError: vLLM is not installed; the message names the remedy.
        InvalidInputError: somebody else registered a class under one of the names.
    """
    try:
        from vllm.model_executor.custom_op import CustomOp, op_registry_oot
    except ImportError as error:
        raise ImportError(
            "ascend_ops_core.vllm puts layers into vLLM, which is not installed. Install vLLM, or "
            "use ascend_ops_core.ops without it."
        ) from error
    from vllm.platforms import current_platform

    on_npu = current_platform.device_type == "npu"
    for name, place in _CLASSES + (_NPU_CLASSES if on_npu else ()):
        module, _, attribute = place.partition(":")
        ours = getattr(importlib.import_module(module), attribute)
        taken = op_registry_oot.get(name)
        if taken is ours:
            continue
        if taken is not None:
            raise InvalidInputError(
                f"vLLM's class {name}",
                f"{taken.__module__}.{taken.__qualname__} is registered for it already",
                "Uninstall or disable the other plugin (VLLM_PLUGINS).",
            )
        CustomOp.register_oot(ours, name=name)
        # vLLM has written the class's name over the one by which custom_ops=["+rms_norm"] finds it.
        if any("name" in vars(base) for base in ours.__mro__[1:]):
            del ours.name
