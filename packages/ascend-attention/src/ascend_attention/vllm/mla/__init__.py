"""Multi-head latent attention (DeepSeek-V3) in vLLM."""

from ascend_attention.vllm.mla.backend import AscendMLABackend, AscendMLAMetadataBuilder
from ascend_attention.vllm.mla.cache_layers import AscendMLACache
from ascend_attention.vllm.mla.impl import AscendMLAImpl
from ascend_attention.vllm.mla.layer import MLAAttention
from ascend_attention.vllm.mla.metadata import AscendMLAMetadata

__all__ = [
    "AscendMLABackend",
    "AscendMLACache",
    "AscendMLAImpl",
    "AscendMLAMetadata",
    "AscendMLAMetadataBuilder",
    "MLAAttention",
]
