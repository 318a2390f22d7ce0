"""Attention of a block draft: queries of the block, keys of the context and of the block."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.rotary_embedding import get_rope

from ascend_specdec.vllm.draft_windows import own_window

__all__ = ["BlockDraftAttention"]


class BlockDraftAttention(nn.Module):
    """Qwen3's attention, whose keys and values of the context come from the target's states.

    Args:
        config: transformers' config of the draft.
        vllm_config: the engine's config.
        window: tokens that one sees; None for all.
        prefix: name of the layer, with a number behind the target's.
    """

    def __init__(
        self, config: Any, vllm_config: VllmConfig, window: int | None, prefix: str
    ) -> None:
        super().__init__()
        ranks = get_tensor_model_parallel_world_size()
        heads, key_heads = config.num_attention_heads, config.num_key_value_heads
        hidden = config.hidden_size
        self.head_dim = getattr(config, "head_dim", None) or hidden // heads
        self.num_heads = heads // ranks
        self.num_key_heads = max(1, key_heads // ranks)
        bias = getattr(config, "attention_bias", False)
        # Apart, since the context needs keys and values alone.
        self.q_proj = ColumnParallelLinear(
            hidden,
            heads * self.head_dim,
            bias=bias,
            prefix=f"{prefix}.q_proj",
            return_bias=False,
        )
        self.kv_proj = QKVParallelLinear(
            hidden,
            self.head_dim,
            0,
            key_heads,
            bias=bias,
            prefix=f"{prefix}.kv_proj",
            return_bias=False,
        )
        self.o_proj = RowParallelLinear(
            heads * self.head_dim,
            hidden,
            bias=bias,
            prefix=f"{prefix}.o_proj",
            return_bias=False,
        )
        self.q_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.rotary_emb = get_rope(
            self.head_dim,
            # Its positions are the target's, however few the draft was trained on.
            max_position=max(
                config.max_position_embeddings, vllm_config.model_config.max_model_len
            ),
            rope_parameters=config.rope_parameters,
        )
        with own_window(vllm_config, window):
            self.attn = Attention(
                self.num_heads,
                self.head_dim,
                self.head_dim**-0.5,
                num_kv_heads=self.num_key_heads,
                cache_config=vllm_config.cache_config,
                prefix=f"{prefix}.attn",
            )

    def forward(self, positions: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """``[N, H]`` of the block's rows ``hidden [N, H]`` at ``positions [N]``."""
        query = self.q_norm(self.q_proj(hidden).unflatten(-1, (-1, self.head_dim))).flatten(1)
        key, value = self._keys_and_values(hidden)
        query, key = self.rotary_emb(positions, query, key)
        return self.o_proj(self.attn(query, key, value))

    def insert_context(
        self, states: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Write keys and values of context into the layer's cache.

        Args:
            states: ``[T, H]``, what the target's hidden states were combined to.
            positions: ``[T]``.
            slots: ``[T]`` int64 in the layer's cache; negative for rows that are not written.
        """
        key, value = self._keys_and_values(states)
        key, _ = self.rotary_emb(positions, key, None)
        heads = (-1, self.num_key_heads, self.head_dim)
        self.attn.impl.do_kv_cache_update(
            self.attn, key.view(heads), value.view(heads), self.attn.kv_cache, slots
        )

    def _keys_and_values(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normed keys and values of rows, ``[N, heads * D]`` each."""
        width = self.num_key_heads * self.head_dim
        key, value = self.kv_proj(rows).split([width, width], dim=-1)
        key = self.k_norm(key.unflatten(-1, (-1, self.head_dim)).contiguous()).flatten(1)
        return key, value.contiguous()
