"""What vLLM's model registry imports; kept thin because vLLM inspects it in a subprocess."""

from ascend_models_deepseek.deepseek_v3.model import AscendDeepseekV3ForCausalLM
from ascend_models_deepseek.deepseek_v3.mtp import AscendDeepSeekMTP
from ascend_models_deepseek.deepseek_v4.model import AscendDeepseekV4ForCausalLM
from ascend_models_deepseek.deepseek_v4.mtp import DeepSeekV4MTP

__all__ = [
    "AscendDeepSeekMTP",
    "AscendDeepseekV3ForCausalLM",
    "AscendDeepseekV4ForCausalLM",
    "DeepSeekV4MTP",
]
