"""The models that are DeepSeek-V3 but for their attention, by ``model_type``."""

from __future__ import annotations

from ascend_models_deepseek.deepseek_v3.architecture import DEEPSEEK_V3, Architecture
from ascend_models_deepseek.deepseek_v32.architecture import DEEPSEEK_V32
from ascend_models_deepseek.glm_moe_dsa.architecture import GLM_MOE_DSA

ARCHITECTURES: dict[str, Architecture] = {
    one.model_type: one for one in (DEEPSEEK_V3, DEEPSEEK_V32, GLM_MOE_DSA)
}
"""By ``model_type``."""
