"""The Ascend stack as a vLLM plugin, on a CPU and on a simulated NPU.

vLLM calls :func:`register_platform` wherever it asks what device it runs on, and
:func:`register` in every process that loads models. Importing this package imports neither torch
nor vLLM.
"""

from __future__ import annotations

import logging

__version__ = "0.1.0"

__all__ = ["__version__", "register", "register_platform"]

logger = logging.getLogger(__name__)

NPU_PLATFORM = "ascend_vllm_plugin.npu.platform.AscendNPUPlatform"
REFERENCE_PLATFORM = "ascend_vllm_plugin.platform.AscendReferencePlatform"


def register_platform() -> str | None:
    """Entry point of ``vllm.platform_plugins``.

    Returns:
        The qualified name of the NPU platform where an NPU is found or ``ASCEND_SIMULATED_NPU``
        asks for the simulated one, which this process then has; of the CPU reference platform
        where vLLM is a CPU build; else None: another accelerator's vLLM is left alone.

    Raises:
        Exception: whatever made the decision impossible, after logging it, since vLLM swallows
            exceptions here and would quietly run its stock platform.
    """
    try:
        from ascend_vllm_plugin import detection
        from ascend_vllm_plugin.compat.distribution_name import answer_to_vllm
        from ascend_vllm_plugin.npu import simulated

        if simulated.asked_for():
            simulated.install()
            answer_to_vllm()
            return NPU_PLATFORM
        if detection.vllm_is_of_another_accelerator():
            return None
        if detection.npu_found():
            return NPU_PLATFORM
        if not detection.vllm_is_cpu_build():
            return None
        answer_to_vllm()
    except Exception as error:
        logger.error(
            "the Ascend platform plugin cannot tell what device vLLM shall use (%s: %s), so vLLM "
            "falls back to its stock platform, which cannot serve DeepSeek-V4. Run "
            "'ascend-vllm doctor'.",
            type(error).__name__,
            error,
        )
        raise
    return REFERENCE_PLATFORM


def register() -> None:
    """Entry point of ``vllm.general_plugins``: plugs every package in, lowest layer first.

    Does nothing where another accelerator's vLLM is installed.
    """
    platform = register_platform()
    if platform is None:
        return
    from ascend_fused_moe.vllm import register as register_experts
    from ascend_models_deepseek.vllm import register as register_deepseek
    from ascend_models_kimi.vllm import register as register_kimi
    from ascend_models_minimax.vllm import register as register_minimax
    from ascend_specdec.vllm import register_drafts

    from ascend_vllm_plugin.compat.bailing_config import read_ling_configs
    from ascend_vllm_plugin.compat.draft_caches import keep_draft_caches
    from ascend_vllm_plugin.compat.eplb_switch import allow_eplb
    from ascend_vllm_plugin.compat.oversized_images import refuse_oversized_images

    allow_eplb()
    keep_draft_caches()
    refuse_oversized_images()
    read_ling_configs()
    if platform == NPU_PLATFORM:
        from ascend_attention.vllm import register as register_attention
        from ascend_ops_core.vllm import register as register_layers

        register_layers()
        register_attention()
    else:
        from ascend_specdec.vllm import register as register_verification

        from ascend_vllm_plugin.compat.context_parallel import allow_shared_contexts
        from ascend_vllm_plugin.compat.stale_shared_memory import replace_stale_memory

        register_verification()
        allow_shared_contexts()
        replace_stale_memory()
    register_experts()
    register_deepseek()
    register_kimi()
    register_minimax()
    register_drafts()
