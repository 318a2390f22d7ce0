"""What GLM-5 exchanges of DeepSeek-V3.2."""

from __future__ import annotations

from dataclasses import dataclass

from ascend_models_deepseek.deepseek_v3.architecture import Architecture
from ascend_models_deepseek.deepseek_v32.architecture import (
    sparse_attention,
    sparse_attention_rules,
    sparse_caches,
)
from ascend_models_deepseek.deepseek_v32.config import DeepseekV32Spec


@dataclass(frozen=True)
class GlmMoeDsaSpec(DeepseekV32Spec):
    """GLM-5's config, whose indexer rotates neighbouring channels unless it says otherwise."""

    default_rope_interleave = True


GLM_MOE_DSA = Architecture(
    "glm_moe_dsa",
    GlmMoeDsaSpec,
    sparse_attention,
    sparse_attention_rules,
    sparse_caches,
    sparse=True,
)
