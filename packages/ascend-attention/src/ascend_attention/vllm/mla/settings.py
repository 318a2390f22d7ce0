"""What an engine may ask of the latent attention of vLLM's own models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_ops_core.errors import InvalidInputError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["check_upstream_latents"]

_FLOATS = ("auto", "bfloat16", "float32", "float16")


def check_upstream_latents(vllm_config: VllmConfig) -> None:
    """Refuse settings that :class:`.wrapper.AscendMultiHeadLatentAttentionWrapper` has no form for.

    Raises:
        InvalidInputError: an indexer, caches of eight bits, or contexts that ranks share.
    """
    text = getattr(vllm_config.model_config, "hf_text_config", None)
    selected = getattr(text, "index_topk", None)
    if selected is not None:
        raise InvalidInputError(
            f"index_topk={selected} in the config of a model of vLLM's own",
            "its latent attention is served over all tokens, without an indexer",
            "Serve another model; DeepSeek-V3.2 and GLM-5 have classes of this project.",
        )
    cache, parallel = vllm_config.cache_config, vllm_config.parallel_config
    if cache.cache_dtype not in _FLOATS:
        raise InvalidInputError(
            f"kv_cache_dtype={cache.cache_dtype!r}",
            "latents of vLLM's own models keep the model's dtype",
            "Leave kv_cache_dtype unset.",
        )
    if parallel.decode_context_parallel_size > 1:
        raise InvalidInputError(
            f"decode_context_parallel_size={parallel.decode_context_parallel_size}",
            "every rank caches the whole contexts of vLLM's own models with latent attention",
            "Leave decode_context_parallel_size unset.",
        )
