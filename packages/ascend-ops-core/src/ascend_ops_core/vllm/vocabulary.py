"""Token embedding and output head, split over the vocabulary by vLLM's layers."""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from ascend_ops_core.ops.linear import linear

_Layer = TypeVar("_Layer", bound=VocabParallelEmbedding)


class VocabularySizes(Protocol):
    """What an embedding is built from."""

    @property
    def vocab_size(self) -> int:
        """``V``."""

    @property
    def hidden_size(self) -> int:
        """``H``."""


class AscendUnquantizedEmbeddingMethod(UnquantizedEmbeddingMethod):
    """vLLM's method without its CPU repacking, which would keep a second copy of the weights."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Nothing: the operators read the weights as they are."""

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits ``[T, V]`` of ``x [T, H]``."""
        assert isinstance(layer.weight, torch.Tensor)
        logits = linear(x, layer.weight)
        return logits if bias is None else logits + bias


def vocab_embedding(spec: VocabularySizes, dtype: torch.dtype) -> VocabParallelEmbedding:
    """The token embedding ``[V, H]``, this rank's rows."""
    layer = VocabParallelEmbedding(spec.vocab_size, spec.hidden_size, params_dtype=dtype)
    return _prepare(layer)


def lm_head(spec: VocabularySizes, dtype: torch.dtype) -> ParallelLMHead:
    """The output head ``[V, H]``, this rank's rows."""
    return _prepare(ParallelLMHead(spec.vocab_size, spec.hidden_size, params_dtype=dtype))


def vocabulary_range(layer: VocabParallelEmbedding) -> tuple[int, int]:
    """Rows of the checkpoint that this rank holds; the rows behind them are padding."""
    indices = layer.shard_indices
    return indices.org_vocab_start_index, indices.org_vocab_end_index


def _prepare(layer: _Layer) -> _Layer:
    layer.quant_method = AscendUnquantizedEmbeddingMethod()
    # Padding rows take part in products and gathers; they must be finite.
    layer.weight.data.zero_()
    return layer
