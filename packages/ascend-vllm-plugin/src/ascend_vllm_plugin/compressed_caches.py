"""What both platforms do for models with compressed caches."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ascend_attention.caches import default_block_tokens, describe
from ascend_ops_core.errors import InvalidInputError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)


def has_compressed_caches(model_config: Any) -> bool:
    """Whether a model keeps compressed key-value entries."""
    return model_config is not None and hasattr(model_config.hf_text_config, "compress_ratios")


def block_sizes(device: str, compress_ratios: Iterable[int]) -> list[int]:
    """Tokens per block that compressed caches may have, the default first.

    Args:
        device: a key of :data:`ascend_attention.caches.DEVICE_CACHES`.
        compress_ratios: of the model's layers; a block holds whole rows of each.
    """
    widest = max(compress_ratios, default=0) or 1
    return [size for size, _ in describe(device) if size % widest == 0]


def set_block_size(vllm_config: VllmConfig, device: str) -> None:
    """Set the tokens per block of the compressed caches.

    Args:
        vllm_config: the engine's config, changed in place.
        device: a key of :data:`ascend_attention.caches.DEVICE_CACHES`.

    Raises:
        InvalidInputError: the user asked for a size that the device's caches do not have, or that
            holds no whole row of the model's.
    """
    cache = vllm_config.cache_config
    ratios = getattr(vllm_config.model_config, "hf_text_config", None)
    sizes = block_sizes(device, getattr(ratios, "compress_ratios", None) or ())
    if not cache.user_specified_block_size:
        cache.block_size = default_block_tokens(device)
    elif cache.block_size not in sizes:
        raise InvalidInputError(
            f"block_size={cache.block_size}",
            f"on {'a CPU' if device == 'cpu' else device} compressed caches of this model use "
            f"blocks of {' or '.join(map(str, sizes))} tokens",
            "Leave --block-size unset.",
        )
    if cache.enable_prefix_caching:
        logger.info(
            "prefix caching: a prefix is reused in units of %d tokens (the block of the "
            "compressed caches), so a shared prefix shorter than that gives no hit",
            cache.block_size,
        )
