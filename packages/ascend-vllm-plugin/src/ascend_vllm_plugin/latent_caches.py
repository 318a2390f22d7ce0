"""What both platforms do for models that cache a latent for every token (DeepSeek-V3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_attention.caches import latent_blocks
from ascend_ops_core.errors import InvalidInputError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def set_latent_block_size(vllm_config: VllmConfig, device: str) -> None:
    """Set the tokens per block of the latent caches.

    Args:
        vllm_config: the engine's config, changed in place.
        device: a key of :data:`ascend_attention.caches.DEVICE_CACHES`.

    Raises:
        InvalidInputError: the user asked for a size that the device's caches do not have, or one
            that the interleave of context parallelism does not divide.
    """
    cache, sizes = vllm_config.cache_config, latent_blocks(device)
    if not cache.user_specified_block_size:
        cache.block_size = sizes[0]
    elif cache.block_size not in sizes:
        raise InvalidInputError(
            f"block_size={cache.block_size}",
            f"on {'a CPU' if device == 'cpu' else device} latent caches use blocks of "
            f"{' or '.join(map(str, sizes))} tokens",
            "Leave --block-size unset, or use one of these.",
        )
    parallel = vllm_config.parallel_config
    interleave = parallel.cp_kv_cache_interleave_size
    # The older name overrides the newer one, as in VllmConfig.validate_block_size.
    if parallel.dcp_kv_cache_interleave_size > 1:
        interleave = parallel.dcp_kv_cache_interleave_size
    if parallel.decode_context_parallel_size > 1 and cache.block_size % interleave:
        raise InvalidInputError(
            f"cp_kv_cache_interleave_size={interleave}",
            f"it must divide block_size={cache.block_size}, since a rank's tokens fill its blocks",
            "Use 1 or another divisor.",
        )
