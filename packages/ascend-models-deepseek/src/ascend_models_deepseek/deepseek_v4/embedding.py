"""Token embedding and output head, which models of all packages share."""

from ascend_ops_core.vllm.vocabulary import (
    AscendUnquantizedEmbeddingMethod,
    lm_head,
    vocab_embedding,
    vocabulary_range,
)

__all__ = [
    "AscendUnquantizedEmbeddingMethod",
    "lm_head",
    "vocab_embedding",
    "vocabulary_range",
]
