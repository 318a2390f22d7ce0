"""What vLLM's speculative settings ask for that cannot be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_ops_core.errors import InvalidInputError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def check_speculation(vllm_config: VllmConfig) -> None:
    """Refuse ways of verification that vLLM's V1 runner would quietly replace by its standard.

    Raises:
        InvalidInputError: ``rejection_sample_method`` is not ``standard``.
    """
    speculative = vllm_config.speculative_config
    if speculative is None:
        return
    method = speculative.rejection_sample_method
    if method != "standard":
        raise InvalidInputError(
            f"rejection_sample_method={method!r}",
            "vLLM 0.27.1's V1 runner, which serves these models, verifies drafts one by one",
            "Leave it out, or set it to 'standard'.",
        )
