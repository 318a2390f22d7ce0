"""Whether latents are cached in eight bits: as an engine asks for it, or a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ascend_ops_core.errors import InvalidInputError

if TYPE_CHECKING:
    from ascend_ops_core.quantized_weights.descriptions import CacheDescription
    from vllm.config import VllmConfig


def int8_latents(
    vllm_config: VllmConfig, described: CacheDescription, *, sparse: bool, family: str
) -> bool:
    """Whether ``additional_config`` asks for it (``latent_cache_dtype``), or the checkpoint does.

    A checkpoint's wish (ModelSlim's C8 and FAKQuant) holds where operators read such latents: on an
    NPU, for a model that attends to selected tokens, unless ``cache_dtype`` is ``"model"``.

    Args:
        vllm_config: the engine's config.
        described: what the checkpoint says.
        sparse: whether the model attends to selected tokens.
        family: device family of the cache table.
    """
    given = vllm_config.additional_config
    asked = given if isinstance(given, Mapping) else {}
    if asked.get("latent_cache_dtype") is not None:
        return asked_for_int8_latents(vllm_config)
    return wants_int8_latents(
        described, asked.get("cache_dtype", "family"), sparse=sparse, family=family
    )


def wants_int8_latents(
    described: CacheDescription, cache_dtype: str, *, sparse: bool, family: str
) -> bool:
    """The same where nobody asks for a dtype of latents.

    Args:
        described: what the checkpoint says.
        cache_dtype: ``"family"``, or ``"model"`` for caches in the model's dtype.
        sparse: whether the model attends to selected tokens.
        family: device family of the cache table.
    """
    return described.kv == "int8" and cache_dtype != "model" and sparse and family != "cpu"


def asked_for_int8_latents(vllm_config: VllmConfig) -> bool:
    """Whether ``additional_config`` asks for latents in eight bits."""
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
    if asked_for_int8_latents(vllm_config) and not sparse:
        raise InvalidInputError(
            "additional_config latent_cache_dtype='int8'",
            "attention over all tokens reads latents in the model's dtype",
            "Remove it, or serve a model with an indexer (DeepSeek-V3.2, GLM-5).",
        )
