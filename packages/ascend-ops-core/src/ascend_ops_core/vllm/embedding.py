"""vLLM's token embedding, output head and logits, also shared by ranks with different tokens.

With ``ParallelLayout.embedding`` or ``lm_head`` the vocabulary is split over a group whose ranks
have tokens of their own, the same number on each: a rank gathers the tokens of all, does its part
of the vocabulary for them, and gets whole rows back for its own.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.quantization.base_config import method_has_implemented_embedding
from vllm.model_executor.layers.vocab_parallel_embedding import (
    DEFAULT_VOCAB_PADDING_SIZE,
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
    VocabParallelEmbeddingShardIndices,
    pad_vocab_size,
)

from ascend_ops_core.communication import Group, lmhead_all_to_all
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.embedding import mask_vocab_range
from ascend_ops_core.ops.linear import unquantized_gemm
from ascend_ops_core.vllm.linear.layout import parallel_layout


class AscendUnquantizedEmbeddingMethod(UnquantizedEmbeddingMethod):
    """Rows and logits by this package's operators; the weight stays as it was loaded."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Nothing: rows are gathered from the weight."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Logits ``[T, V / P]`` of ``x [T, H]``."""
        return unquantized_gemm(x, layer.weight, bias)


def _mask_input_for_vocab_range(
    ids: torch.Tensor, shard: VocabParallelEmbeddingShardIndices
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of a shard and which ids it lacks; see :func:`mask_vocab_range`."""
    return mask_vocab_range(
        ids,
        shard.org_vocab_start_index,
        shard.org_vocab_end_index,
        shard.num_org_vocab_padding,
        shard.added_vocab_start_index,
        shard.added_vocab_end_index,
    )


class AscendVocabParallelEmbedding(VocabParallelEmbedding):
    """Token embedding; arguments as vLLM's."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        params_dtype: torch.dtype | None = None,
        org_num_embeddings: int | None = None,
        padding_size: int = DEFAULT_VOCAB_PADDING_SIZE,
        quant_config: Any = None,
        prefix: str = "",
        *,
        disable_tp: bool = False,
    ) -> None:
        self._group = None if disable_tp else parallel_layout().embedding
        padding = padding_size
        if self._group is not None:
            padding = _padding(padding_size, self._group.world_size)
        _build(
            self,
            num_embeddings,
            embedding_dim,
            params_dtype,
            org_num_embeddings,
            padding,
            quant_config,
            prefix,
            disable_tp=disable_tp or self._group is not None,
        )
        if self._group is not None:
            _reshard(self, self._group)
        _use_our_operators(self)

    def forward(self, input_: torch.Tensor) -> torch.Tensor:
        """``[T]`` ids to ``[T, H]``; ids outside of the vocabulary give zeros if it is split."""
        if self._group is not None:
            return self._forward_embed_tp(input_, self._group)
        return self._forward_origin(input_)

    def _forward_origin(self, ids: torch.Tensor) -> torch.Tensor:
        if self.tp_size == 1:
            return self.quant_method.embedding(self, ids.long())
        return tensor_model_parallel_all_reduce(self._own_rows(ids))

    def _forward_embed_tp(self, ids: torch.Tensor, group: Group) -> torch.Tensor:
        if group.world_size == 1:
            return self._own_rows(ids)
        return group.reduce_scatter(self._own_rows(group.all_gather(ids, 0)), 0)

    def _own_rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the ids that this rank holds, zeros for the others."""
        rows, missing = _mask_input_for_vocab_range(ids, self.shard_indices)
        embedded: torch.Tensor = self.quant_method.embedding(self, rows.long())
        return embedded.masked_fill_(missing.unsqueeze(-1), 0)


class AscendParallelLMHead(ParallelLMHead):
    """Output head; arguments as vLLM's. :class:`AscendLogitsProcessor` applies it."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        bias: bool = False,
        params_dtype: torch.dtype | None = None,
        org_num_embeddings: int | None = None,
        padding_size: int = DEFAULT_VOCAB_PADDING_SIZE,
        quant_config: Any = None,
        prefix: str = "",
        *,
        disable_tp: bool = False,
    ) -> None:
        group = None if disable_tp else parallel_layout().lm_head
        padding = _padding(padding_size, group.world_size) if group is not None else padding_size
        super().__init__(
            num_embeddings,
            embedding_dim,
            bias,
            params_dtype,
            org_num_embeddings,
            padding,
            quant_config,
            prefix,
            disable_tp=disable_tp or group is not None,
        )
        self._group = group
        if group is not None:
            _reshard(self, group)
            if bias:
                self._register_bias()
        _use_our_operators(self)


class AscendLogitsProcessor(LogitsProcessor):
    """Logits of hidden states; arguments as vLLM's."""

    def _get_logits(
        self, hidden_states: torch.Tensor, lm_head: Any, embedding_bias: torch.Tensor | None
    ) -> torch.Tensor | None:
        group = getattr(lm_head, "_group", None)
        if group is None:
            return self._get_logits_normal(hidden_states, lm_head, embedding_bias)
        return self._get_logits_lmheadtp(hidden_states, lm_head, embedding_bias, group)

    def _get_logits_normal(
        self, hidden_states: torch.Tensor, lm_head: Any, embedding_bias: torch.Tensor | None
    ) -> torch.Tensor | None:
        """vLLM's way: every rank has the same tokens."""
        logits: torch.Tensor | None = super()._get_logits(hidden_states, lm_head, embedding_bias)
        return logits

    def _get_logits_lmheadtp(
        self,
        hidden_states: torch.Tensor,
        lm_head: Any,
        embedding_bias: torch.Tensor | None,
        group: Group,
    ) -> torch.Tensor:
        """``[T, H]`` of this rank's tokens to ``[T, V]``; ``T`` is the same on all ranks."""
        if group.world_size > 1:
            hidden_states = group.all_gather(hidden_states, 0)
        logits = self._apply_head(lm_head, hidden_states, embedding_bias)
        return lmhead_all_to_all(logits, group)[..., : self.org_vocab_size]


def _use_our_operators(layer: Any) -> None:
    if type(layer.quant_method) is UnquantizedEmbeddingMethod:
        layer.quant_method = AscendUnquantizedEmbeddingMethod()


def _padding(padding_size: int, ranks: int) -> int:
    """A padding of the vocabulary that every number of ranks divides."""
    return pad_vocab_size(padding_size, ranks)


def _build(layer: VocabParallelEmbedding, *args: Any, **kwargs: Any) -> None:
    # vLLM's embedding layer checks the quantization method only for its own class.
    VocabParallelEmbedding.__init__(layer, *args, **kwargs)
    if not method_has_implemented_embedding(type(layer.quant_method)):
        raise InvalidInputError(
            f"quantization method {type(layer.quant_method).__name__} of an embedding",
            "it has no `embedding`",
            "Leave the embedding out of the quantization.",
        )


def _reshard(layer: VocabParallelEmbedding, group: Group) -> None:
    """Give a layer that was built whole the share of its rank in ``group``."""
    layer.tp_size, layer.tp_rank = group.world_size, group.rank_in_group
    layer.shard_indices = layer._get_indices(
        layer.num_embeddings_padded,
        layer.org_vocab_size_padded,
        layer.num_embeddings,
        layer.org_vocab_size,
        layer.tp_rank,
        layer.tp_size,
    )
    shard = layer.shard_indices
    layer.num_embeddings_per_partition = layer.num_embeddings_padded // layer.tp_size
    layer.num_org_embeddings_per_partition = shard.num_org_elements
    layer.num_added_embeddings_per_partition = shard.num_added_elements
    layer.quant_method.create_weights(
        layer,
        layer.embedding_dim,
        [layer.num_embeddings_per_partition],
        layer.embedding_dim,
        layer.num_embeddings_padded,
        params_dtype=layer.params_dtype,
        weight_loader=layer.weight_loader,
    )
    layer.update_param_tp_status()
