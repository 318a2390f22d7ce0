"""The lightning indexer of a layer with its cache."""

from __future__ import annotations

import torch

from ascend_attention.layers.token_indexer import IndexerInputs, TokenIndexer
from ascend_attention.ops.token_indexer import select_tokens
from ascend_attention.vllm.sfa.cache_layers import AscendSFAIndexCache
from ascend_attention.vllm.sfa.metadata import AscendSFAMetadata


class IndexerWrapper:
    """An indexer with its cache: writes a step's keys, then selects for its queries.

    Args:
        indexer: weights.
        cache: keys of all tokens.
    """

    def __init__(self, indexer: TokenIndexer, cache: AscendSFAIndexCache) -> None:
        self.indexer = indexer
        self.cache = cache

    def prepare(
        self,
        hidden: torch.Tensor,
        q_latent: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        meta: AscendSFAMetadata,
    ) -> IndexerInputs:
        """Cache the keys of the step's tokens, and return what their selection needs.

        Args:
            hidden: ``[T, H]`` normed input of the layer, of the step's tokens alone.
            q_latent: ``[T, Q]``.
            cos: ``[T, rope_dim / 2]`` float32.
            sin: the same.
            meta: the step.
        """
        quantised = self.cache.kind.scales is not None
        made = self.indexer.project(hidden, q_latent, cos, sin, rotate=quantised)
        self.cache.write(made.key, meta.write)
        return made

    def select(
        self,
        hidden: torch.Tensor,
        q_latent: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        """``[T, K]`` int32 token numbers; see :func:`ascend_attention.ops.token_indexer`.

        ``K`` is ``top_k``, or less where no context of the step is that long.

        Args:
            hidden: ``[T, H]`` normed input of the layer, of the step's tokens alone.
            q_latent: ``[T, Q]``.
            cos: ``[T, rope_dim / 2]`` float32.
            sin: the same.
        """
        meta: AscendSFAMetadata | None = self.cache.metadata()
        assert meta is not None, self.cache.prefix
        made = self.prepare(hidden, q_latent, cos, sin, meta)
        return select_tokens(
            made.query,
            made.head_weights,
            self.cache.rows,
            meta.block_table,
            meta.query_ends,
            meta.seq_lens,
            max(1, min(self.indexer.shape.top_k, meta.most_tokens)),
            key_scale=self.cache.scales,
            most_tokens=meta.most_tokens,
        )
