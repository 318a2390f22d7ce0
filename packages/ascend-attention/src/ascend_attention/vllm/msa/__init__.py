"""Block-sparse attention (MiniMax-M3) in vLLM: an indexer of blocks, and GQA over its choice."""

from ascend_attention.vllm.msa.backend import (
    AscendMiniMaxM3IndexerBackend,
    AscendMiniMaxM3MetadataBuilder,
    AscendMiniMaxM3SparseBackend,
)
from ascend_attention.vllm.msa.cache_layers import (
    AscendMiniMaxM3IndexerCache,
    AscendMiniMaxM3KVCache,
)
from ascend_attention.vllm.msa.impl import AscendMiniMaxM3SparseImpl
from ascend_attention.vllm.msa.indexer import AscendMiniMaxM3Indexer, AscendMiniMaxM3IndexerImpl
from ascend_attention.vllm.msa.layer import MSAAttention
from ascend_attention.vllm.msa.metadata import AscendMiniMaxM3Metadata
from ascend_attention.vllm.msa.op import minimax_m3_sparse_forward
from ascend_attention.vllm.msa.shapes import BlockSelectionShape

__all__ = [
    "AscendMiniMaxM3Indexer",
    "AscendMiniMaxM3IndexerBackend",
    "AscendMiniMaxM3IndexerCache",
    "AscendMiniMaxM3IndexerImpl",
    "AscendMiniMaxM3KVCache",
    "AscendMiniMaxM3Metadata",
    "AscendMiniMaxM3MetadataBuilder",
    "AscendMiniMaxM3SparseBackend",
    "AscendMiniMaxM3SparseImpl",
    "BlockSelectionShape",
    "MSAAttention",
    "minimax_m3_sparse_forward",
]
