"""DeepSeek sparse attention over compressed caches (DSA of DeepSeek-V4) in vLLM."""

from ascend_attention.vllm.dsa.backend import AscendDSABackend, AscendDSAMetadataBuilder
from ascend_attention.vllm.dsa.cache_layers import (
    AscendCompressorStateCache,
    AscendDeepseekV4CompressedCache,
    AscendDeepseekV4IndexerCache,
    AscendDeepseekV4SWACache,
)
from ascend_attention.vllm.dsa.impl import AscendDSAImpl
from ascend_attention.vllm.dsa.layer import DSAAttention, DSAShape
from ascend_attention.vllm.dsa.metadata import AscendDSAMetadata

__all__ = [
    "AscendCompressorStateCache",
    "AscendDSABackend",
    "AscendDSAImpl",
    "AscendDSAMetadata",
    "AscendDSAMetadataBuilder",
    "AscendDeepseekV4CompressedCache",
    "AscendDeepseekV4IndexerCache",
    "AscendDeepseekV4SWACache",
    "DSAAttention",
    "DSAShape",
]
