"""Adaptors to vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["check_speculation", "register"]


def register() -> None:
    """Let vLLM's CPU runner verify drafts by this package's operators."""
    from ascend_specdec.vllm.kernels import replace_cpu_kernels

    replace_cpu_kernels()


def check_speculation(vllm_config: VllmConfig) -> None:
    """See :func:`ascend_specdec.vllm.config.check_speculation`."""
    from ascend_specdec.vllm import config

    config.check_speculation(vllm_config)
