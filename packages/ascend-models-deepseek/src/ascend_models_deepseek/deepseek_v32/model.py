"""DeepSeek-V3.2 on vLLM: the class that vLLM loads."""

from __future__ import annotations

from typing import ClassVar, cast

from ascend_attention.vllm.sfa import SFAAttention, share_selections
from vllm.config import VllmConfig

from ascend_models_deepseek.deepseek_v3.architecture import Architecture
from ascend_models_deepseek.deepseek_v3.decoder_layer import (
    DeepseekV3DecoderLayer as DeepseekV32DecoderLayer,
)
from ascend_models_deepseek.deepseek_v3.model import AscendDeepseekV3ForCausalLM
from ascend_models_deepseek.deepseek_v3.model import DeepseekV3Model as DeepseekV32Model
from ascend_models_deepseek.deepseek_v3.mtp import AscendDeepSeekMTP as DeepseekV32MTP
from ascend_models_deepseek.deepseek_v3.mtp import (
    DeepSeekMultiTokenPredictor as DeepseekV32MultiTokenPredictor,
)
from ascend_models_deepseek.deepseek_v3.mtp import (
    DeepSeekMultiTokenPredictorLayer as DeepseekV32MultiTokenPredictorLayer,
)
from ascend_models_deepseek.deepseek_v32.architecture import DEEPSEEK_V32

__all__ = [
    "DeepseekV32DecoderLayer",
    "DeepseekV32ForCausalLM",
    "DeepseekV32MTP",
    "DeepseekV32Model",
    "DeepseekV32MultiTokenPredictor",
    "DeepseekV32MultiTokenPredictorLayer",
]


class DeepseekV32ForCausalLM(AscendDeepseekV3ForCausalLM):
    """DeepSeek-V3.2 as vLLM's class of that name; stack, layers and draft are DeepSeek-V3's."""

    architecture: ClassVar[Architecture] = DEEPSEEK_V32

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        share_selections(cast(SFAAttention, layer.self_attn) for layer in self.model.layers)
