"""MLAAttention: the projections, the cache and the attention of one layer."""

from __future__ import annotations

import torch

from ascend_attention.caches import CacheRole, mla_caches
from ascend_attention.layers.context_parallel import ContextParallel
from ascend_attention.layers.mla import AscendMultiHeadLatentAttention, MLAShape
from ascend_attention.vllm.mla.cache_layers import AscendMLACache
from ascend_attention.vllm.mla.impl import AscendMLAImpl
from ascend_attention.vllm.mla.latent_layer import LatentLayer


class MLAAttention(LatentLayer):
    """Latent attention of one layer over all tokens of a request.

    Args:
        shape: sizes.
        dtype: the model's dtype.
        prefix: name of the layer, with its number.
        device: device family of the cache table.
        block_tokens: tokens per block, or None for the family's default.
        context: the exchanges with the ranks that share contexts, if any do.
    """

    impl_cls: type[AscendMLAImpl] = AscendMLAImpl
    """What attends; models that select tokens have one of their own."""

    cache_cls: type[AscendMLACache] = AscendMLACache
    """The cache; models whose other layers keep recurrent states have one of their own."""

    def __init__(
        self,
        shape: MLAShape,
        dtype: torch.dtype,
        prefix: str,
        *,
        device: str = "cpu",
        block_tokens: int | None = None,
        context: ContextParallel | None = None,
    ) -> None:
        super().__init__()
        self.weights = AscendMultiHeadLatentAttention(shape, dtype)
        kinds = mla_caches(
            kv_lora_rank=shape.kv_lora_rank,
            rotary_dim=shape.rope_dim,
            dtype=dtype,
            device=device,
            block_tokens=block_tokens,
        )
        role = CacheRole.LATENT
        name = f"{prefix}.{role}"
        self.cache = self.cache_cls(kinds[role], shape.kv_lora_rank, name, context)
        self.impl = self.impl_cls(self.weights, self.cache)
        self.choose_layout(device)

    def forward(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """``[T, H]``, this rank's part of the sum over heads.

        Args:
            hidden: ``[T, H]`` normed input of the layer.
            cos: ``[T, R / 2]`` float32.
            sin: the same.
        """
        if self.weights.fused is not None:
            return self.weights.output(self.impl.fused(hidden, cos, sin))
        query = self.weights.project(hidden, cos, sin)
        return self.weights.output(self.impl.forward(query, cos, sin))
