"""Which engines may let ranks share contexts (decode context parallelism)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_ops_core.errors import InvalidInputError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def refuse_context_parallel(vllm_config: VllmConfig) -> None:
    """Refuse it for DeepSeek-V4.

    Raises:
        InvalidInputError: it is asked for.
    """
    _refuse_for_prompts(vllm_config)
    size = vllm_config.parallel_config.decode_context_parallel_size
    if size > 1:
        raise InvalidInputError(
            f"decode_context_parallel_size={size}",
            "DeepSeek-V4's compressed caches and windows lie whole on every rank",
            "Leave it unset, or serve DeepSeek-V3, V3.2 or GLM-5 with it.",
        )


def check_context_parallel(vllm_config: VllmConfig) -> None:
    """Refuse what it does not go with, for models with latent attention.

    Raises:
        InvalidInputError: the first such setting.
    """
    _refuse_for_prompts(vllm_config)


def _refuse_for_prompts(vllm_config: VllmConfig) -> None:
    size = vllm_config.parallel_config.prefill_context_parallel_size
    if size > 1:
        raise InvalidInputError(
            f"prefill_context_parallel_size={size}",
            "the tokens of a prompt are computed by every rank",
            "Use decode_context_parallel_size, which spreads caches, or data parallelism.",
        )
