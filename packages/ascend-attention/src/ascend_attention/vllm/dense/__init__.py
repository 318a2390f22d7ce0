"""Attention of ordinary models (GQA, MHA, MQA) in vLLM."""

from ascend_attention.vllm.dense.backend import (
    AscendAttentionBackend,
    AscendAttentionMetadataBuilder,
    AscendPackedAttentionBackend,
)
from ascend_attention.vllm.dense.impl import AscendAttentionBackendImpl
from ascend_attention.vllm.dense.metadata import AscendAttentionMetadata

__all__ = [
    "AscendAttentionBackend",
    "AscendAttentionBackendImpl",
    "AscendAttentionMetadata",
    "AscendAttentionMetadataBuilder",
    "AscendPackedAttentionBackend",
]
