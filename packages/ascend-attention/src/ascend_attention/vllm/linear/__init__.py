"""Linear attention in vLLM: recurrent states, what a step does with them, and the layers."""

from ascend_attention.vllm.linear.backend import (
    AscendGDNAttentionBackend,
    AscendGDNAttentionMetadataBuilder,
)
from ascend_attention.vllm.linear.core import (
    DeltaHeads,
    DeltaInputs,
    gated_delta_step,
)
from ascend_attention.vllm.linear.kda import AscendKimiK3DeltaAttention
from ascend_attention.vllm.linear.latent import AscendHybridMLABackend, AscendHybridMLACache
from ascend_attention.vllm.linear.metadata import (
    AscendGDNMetadata,
    DecodeSegment,
    PrefillSegment,
    StepRequests,
)
from ascend_attention.vllm.linear.states import STATE_COPY_FUNCTIONS, LinearStateLayer, drafts_of

__all__ = [
    "STATE_COPY_FUNCTIONS",
    "AscendGDNAttentionBackend",
    "AscendGDNAttentionMetadataBuilder",
    "AscendGDNMetadata",
    "AscendHybridMLABackend",
    "AscendHybridMLACache",
    "AscendKimiK3DeltaAttention",
    "DecodeSegment",
    "DeltaHeads",
    "DeltaInputs",
    "LinearStateLayer",
    "PrefillSegment",
    "StepRequests",
    "drafts_of",
    "gated_delta_step",
]
