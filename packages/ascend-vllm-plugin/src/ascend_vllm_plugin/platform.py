"""AscendReferencePlatform: the whole stack on a CPU, inside the real engine."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from ascend_attention.caches import default_block_tokens
from ascend_models_deepseek.vllm import check_request as check_deepseek
from ascend_ops_core.errors import InvalidInputError
from vllm.platforms.cpu import CpuPlatform

from ascend_vllm_plugin.thread_binding import choose_binding

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)

_BIND = "VLLM_CPU_OMP_THREADS_BIND"
_chosen: str | None = None


class AscendReferencePlatform(CpuPlatform):
    """vLLM's CPU platform, able to serve models with compressed sparse attention."""

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Apply vLLM's CPU settings, and undo those that assume MLA cannot run on a CPU."""
        scheduler = vllm_config.scheduler_config
        chunked = scheduler.enable_chunked_prefill
        most_tokens = scheduler.max_num_batched_tokens
        super().check_and_update_config(vllm_config)
        if not _has_compressed_caches(vllm_config.model_config):
            return
        scheduler.enable_chunked_prefill = chunked
        scheduler.max_num_batched_tokens = most_tokens
        check_deepseek(vllm_config)
        _set_block_size(vllm_config)
        _bind_threads(vllm_config)

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        """Refuse DeepSeek-V4's quantized formats by name; they come with a later version."""
        if quant.startswith("deepseek_v4"):
            raise InvalidInputError(
                f"quantization {quant!r}",
                "only unquantized float32, bfloat16 and float16 DeepSeek-V4 checkpoints can be "
                "loaded yet",
                "Convert the checkpoint to bfloat16 and remove quantization_config from "
                "config.json.",
            )
        super().verify_quantization(quant)


def _has_compressed_caches(model_config: Any) -> bool:
    return model_config is not None and hasattr(model_config.hf_text_config, "compress_ratios")


def _set_block_size(vllm_config: VllmConfig) -> None:
    cache = vllm_config.cache_config
    default = default_block_tokens("cpu")
    if cache.user_specified_block_size and cache.block_size != default:
        raise InvalidInputError(
            f"block_size={cache.block_size}",
            f"on a CPU compressed caches use blocks of {default} tokens",
            "Leave --block-size unset.",
        )
    cache.block_size = default
    if cache.enable_prefix_caching:
        logger.info(
            "prefix caching: a prefix is reused in units of %d tokens (the block of the "
            "compressed caches), so a shared prefix shorter than that gives no hit",
            default,
        )


def _bind_threads(vllm_config: VllmConfig) -> None:
    global _chosen
    # What an earlier engine of this process was given is not the user's wish.
    if os.environ.get(_BIND, "auto") not in ("auto", _chosen):
        return
    os.environ.pop(_BIND, None)
    binding = choose_binding(vllm_config.parallel_config.world_size)
    _chosen = None if binding is None else binding.value
    if binding is not None:
        os.environ[_BIND] = binding.value
        logger.info("%s=%s: %s", _BIND, binding.value, binding.reason)
