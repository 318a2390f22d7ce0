"""Sparse latent attention (DeepSeek-V3.2, GLM-5) in vLLM: an indexer, and MLA over its choice."""

from ascend_attention.vllm.sfa.backend import AscendSFABackend, AscendSFAMetadataBuilder
from ascend_attention.vllm.sfa.cache_layers import AscendSFAIndexCache, AscendSFALatentCache
from ascend_attention.vllm.sfa.impl import AscendSFAImpl
from ascend_attention.vllm.sfa.indexer import IndexerWrapper
from ascend_attention.vllm.sfa.layer import SFAAttention, share_selections
from ascend_attention.vllm.sfa.metadata import AscendSFAMetadata
from ascend_attention.vllm.sfa.shared import DraftSelection

__all__ = [
    "AscendSFABackend",
    "AscendSFAImpl",
    "AscendSFAIndexCache",
    "AscendSFALatentCache",
    "AscendSFAMetadata",
    "AscendSFAMetadataBuilder",
    "DraftSelection",
    "IndexerWrapper",
    "SFAAttention",
    "share_selections",
]
