"""Lets a draft's attention see as far as its own config says, not as far as its target's.

Upstream symbol (0.27.1): ``vllm.model_executor.layers.attention.Attention`` gives every layer that
names no window that of ``CacheConfig.sliding_window``, the target's. DeepSeek-V4 has one of 128
tokens for raw rows alone, and a draft that was trained on whole contexts would see no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vllm.config import VllmConfig

__all__ = ["own_window"]


@contextmanager
def own_window(vllm_config: VllmConfig, window: int | None) -> Iterator[None]:
    """Attention layers that are made meanwhile, and name no window, have this one.

    Args:
        vllm_config: the engine's config.
        window: tokens that one sees; None for all.
    """
    cache = vllm_config.cache_config
    saved = cache.sliding_window
    cache.sliding_window = window
    try:
        yield
    finally:
        cache.sliding_window = saved
