"""GLM-5 on vLLM: the class that vLLM loads."""

from __future__ import annotations

from typing import ClassVar

from ascend_models_deepseek.deepseek_v3.architecture import Architecture
from ascend_models_deepseek.deepseek_v32.model import DeepseekV32ForCausalLM
from ascend_models_deepseek.glm_moe_dsa.architecture import GLM_MOE_DSA


class AscendGlmMoeDsaForCausalLM(DeepseekV32ForCausalLM):
    """GLM-5 as vLLM's ``GlmMoeDsaForCausalLM``."""

    architecture: ClassVar[Architecture] = GLM_MOE_DSA
