"""AscendAttentionBackendImpl: the order of work in one layer's attention."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.kv_scatter import scatter_kv_pair
from vllm.v1.attention.backend import AttentionImpl, AttentionType

from ascend_attention.ops.paged_attention import paged_attention
from ascend_attention.vllm.dense.metadata import AscendAttentionMetadata
from ascend_attention.vllm.dsa.metadata import DeferredMetadata

Metadata = DeferredMetadata[AscendAttentionMetadata]


class AscendAttentionBackendImpl(AttentionImpl[Any]):
    """Writes the step's keys and values into the cache and attends to it.

    Args:
        num_heads: query heads of this rank.
        head_size: width of a head.
        scale: factor on dot products.
        num_kv_heads: key heads of this rank; None for as many.
        alibi_slopes: refused.
        sliding_window: tokens that one sees, itself among them; None for all.
        kv_cache_dtype: dtype of the cache; the model's.
        logits_soft_cap: refused; 0 is none.
        attn_type: a decoder's.
        kv_sharing_target_layer_name: the layer whose cache this one reads and does not write.
        sinks: ``[num_heads]`` logits that take weight, or None.

    Raises:
        InvalidInputError: what is refused.
    """

    supports_dcp = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        refused = {
            "ALiBi slopes": alibi_slopes is not None,
            f"a soft cap of logits ({logits_soft_cap})": bool(logits_soft_cap),
            f"{attn_type} attention": attn_type != AttentionType.DECODER,
        }
        for what, given in refused.items():
            if given:
                raise InvalidInputError(
                    f"a model with {what}",
                    "attention on an NPU is a decoder's, without ALiBi and soft cap",
                    "Serve another model.",
                )
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.sinks = sinks
        self.writes = kv_sharing_target_layer_name is None

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Metadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Fill ``output`` and return it; with zeros in a dummy run without caches.

        Args:
            layer: vLLM's layer.
            query: ``[rows, H, D]`` of the step's tokens, and of padding rows behind them.
            key: ``[rows, K, D]``; not read by a layer that shares another's cache.
            value: the same.
            kv_cache: ``[2, blocks, block_tokens, K, D]``; written.
            attn_metadata: of the step.
            output: ``[rows, H, D]``.
            output_scale: refused, as is the next; nothing asks for it.
            output_block_scale: refused.

        Raises:
            InvalidInputError: a scale of a quantised output.
        """
        if output_scale is not None or output_block_scale is not None:
            raise InvalidInputError(
                "attention with a quantised output",
                "its result is in the model's dtype",
                "Switch fuse_attn_quant off.",
            )
        if attn_metadata is None:
            return output.zero_()
        meta = attn_metadata.get()
        tokens = meta.num_tokens
        keys, values = kv_cache.unbind(0)
        if self.writes:
            scatter_kv_pair(keys, values, key[:tokens], value[:tokens], meta.slots)
        attended, _ = paged_attention(
            query[:tokens],
            keys,
            values,
            meta.block_table,
            meta.request,
            meta.position,
            self.scale,
            sinks=self.sinks,
            window=self.sliding_window,
            query_ends=meta.query_ends,
            seq_lens=meta.seq_lens,
        )
        output[:tokens] = attended
        # Padding rows beyond the step's tokens must not carry garbage into the collectives.
        output[tokens:] = 0
        return output

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write rows without attending, as a draft does with context that has no queries.

        Args:
            layer: vLLM's layer.
            key: ``[T, K, D]``.
            value: the same.
            kv_cache: ``[2, blocks, block_tokens, K, D]``; written.
            slot_mapping: ``[T]``; negative for rows that are not written.
        """
        keys, values = kv_cache.unbind(0)
        scatter_kv_pair(keys, values, key, value, slot_mapping)
