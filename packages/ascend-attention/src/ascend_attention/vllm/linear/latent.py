"""Latent caches in a pool of blocks that they share with recurrent states.

vLLM lays the blocks of all groups of a hybrid model over one another: a block is a page of one of
them at a time. So a block's latents must lie within its page, and a page is as large as a state,
which is more tokens than operators of an NPU read at once; vLLM then splits it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionBackend, CommonAttentionMetadata, MultipleOf
from vllm.v1.kv_cache_interface import KVCacheSpec

from ascend_attention.step import StepLayout
from ascend_attention.vllm.compat import cache_spec
from ascend_attention.vllm.dsa.metadata import DeferredMetadata
from ascend_attention.vllm.mla.backend import AscendMLABackend, AscendMLAMetadataBuilder
from ascend_attention.vllm.mla.cache_layers import AscendMLACache
from ascend_attention.vllm.mla.metadata import AscendMLAMetadata, build_metadata

__all__ = ["AscendHybridMLABackend", "AscendHybridMLACache", "AscendHybridMLAMetadataBuilder"]

NPU_BLOCK_TOKENS = 128
"""Tokens of a block that operators of every family of NPUs read."""


class AscendHybridMLAMetadataBuilder(AscendMLAMetadataBuilder):
    """Metadata for blocks of the size that the cache was bound with."""

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = vllm_config.compilation_config.static_forward_context
        self.cache: AscendHybridMLACache = layers[layer_names[0]]

    def _deferred(
        self, common: CommonAttentionMetadata, layout: Callable[[], StepLayout]
    ) -> DeferredMetadata[AscendMLAMetadata]:
        table, slots = common.block_table_tensor[: common.num_reqs], common.slot_mapping
        return DeferredMetadata(
            lambda: build_metadata(layout(), table, slots, self.cache.latents.shape[1])
        )


class AscendHybridMLABackend(AscendMLABackend):
    """Backend of latents beside recurrent states."""

    @staticmethod
    def get_name() -> str:
        return "ASCEND_HYBRID_MLA"

    @staticmethod
    def get_builder_cls() -> type[AscendHybridMLAMetadataBuilder]:
        return AscendHybridMLAMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        # vLLM's runner for CPUs clears blocks by their number, which must then be the cache's.
        if current_platform.device_type == "cpu":
            return [MultipleOf(1)]
        return [NPU_BLOCK_TOKENS]


class AscendHybridMLACache(AscendMLACache):
    """Latents and shared keys of every token, side by side."""

    @property
    def apart(self) -> bool:
        """They do not lie apart."""
        return False

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Take the cache that the engine allocated, ``[blocks, rows, L + R]``."""
        super().bind_kv_cache(kv_cache)
        # The memory is in one piece and yet not this cache's alone.
        self.latents = kv_cache[..., : self.kv_lora_rank]
        self.ropes = kv_cache[..., self.kv_lora_rank :]

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        # vLLM chooses the size of a block once it knows how large a state is.
        block = vllm_config.cache_config.block_size
        return cache_spec(replace(self.kind, block_tokens=block))

    def get_attn_backend(self) -> type[AttentionBackend]:
        return AscendHybridMLABackend
