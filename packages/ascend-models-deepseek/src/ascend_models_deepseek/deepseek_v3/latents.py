"""Whether an engine is asked for latents in eight bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ascend_ops_core.errors import InvalidInputError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def int8_latents(vllm_config: VllmConfig) -> bool:
    """Whether ``additional_config`` asks for it (``latent_cache_dtype``)."""
    given = vllm_config.additional_config
    return isinstance(given, Mapping) and given.get("latent_cache_dtype") == "int8"


def check_latents(vllm_config: VllmConfig, *, sparse: bool) -> None:
    """Refuse latents in eight bits for a model whose attention does not read them.

    Args:
        vllm_config: the engine's config.
        sparse: whether the model attends to selected tokens.

    Raises:
        InvalidInputError: they are asked for and not read.
    """
    if int8_latents(vllm_config) and not sparse:
        raise InvalidInputError(
            "additional_config latent_cache_dtype='int8'",
            "attention over all tokens reads latents in the model's dtype",
            "Remove it, or serve a model with an indexer (DeepSeek-V3.2, GLM-5).",
        )
