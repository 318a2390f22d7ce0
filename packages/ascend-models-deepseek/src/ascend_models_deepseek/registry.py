"""What vLLM's model registry imports; kept thin because vLLM inspects it in a subprocess."""

from ascend_models_deepseek.deepseek_v3.model import AscendDeepseekV3ForCausalLM
from ascend_models_deepseek.deepseek_v3.mtp import AscendDeepSeekMTP
from ascend_models_deepseek.deepseek_v4.dspark import DSparkDeepseekV4ForCausalLM
from ascend_models_deepseek.deepseek_v4.model import AscendDeepseekV4ForCausalLM
from ascend_models_deepseek.deepseek_v4.mtp import DeepSeekV4MTP
from ascend_models_deepseek.deepseek_v32.model import DeepseekV32ForCausalLM
from ascend_models_deepseek.glm_moe_dsa.model import AscendGlmMoeDsaForCausalLM

__all__ = [
    "AscendDeepSeekMTP",
    "AscendDeepseekV3ForCausalLM",
    "AscendDeepseekV4ForCausalLM",
    "AscendGlmMoeDsaForCausalLM",
    "DSparkDeepseekV4ForCausalLM",
    "DeepSeekV4MTP",
    "DeepseekV32ForCausalLM",
]
