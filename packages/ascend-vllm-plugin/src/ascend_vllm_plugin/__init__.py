"""The Ascend stack as a vLLM plugin; today it serves DeepSeek-V4 on a CPU.

vLLM calls :func:`register_platform` wherever it asks what device it runs on, and
:func:`register` in every process that loads models. Importing this package imports neither torch
nor vLLM.
"""

from __future__ import annotations

import logging

__version__ = "0.1.0"

__all__ = ["__version__", "register", "register_platform"]

logger = logging.getLogger(__name__)


def register_platform() -> str | None:
    """Entry point of ``vllm.platform_plugins``.

    Returns:
        The qualified name of the CPU reference platform where vLLM is a CPU build, else None:
        another accelerator's vLLM is left alone.

    Raises:
        Exception: whatever made the decision impossible, after logging it, since vLLM swallows
            exceptions here and would quietly run its stock platform.
    """
    try:
        from ascend_vllm_plugin.detection import vllm_is_cpu_build

        if not vllm_is_cpu_build():
            return None
    except Exception as error:
        logger.error(
            "the Ascend platform plugin cannot tell what device vLLM was built for (%s: %s), so "
            "vLLM falls back to its stock platform, which cannot serve DeepSeek-V4 on a CPU. Run "
            "'ascend-vllm doctor'.",
            type(error).__name__,
            error,
        )
        raise
    return "ascend_vllm_plugin.platform.AscendReferencePlatform"


def register() -> None:
    """Entry point of ``vllm.general_plugins``: plugs every package in, lowest layer first.

    Does nothing where another accelerator's vLLM is installed.
    """
    if register_platform() is None:
        return
    from ascend_models_deepseek.vllm import register as register_deepseek

    from ascend_vllm_plugin.compat.expand_kernel import repair_expand_kernel

    register_deepseek()
    repair_expand_kernel()
