"""What vLLM's model registry imports; kept thin because vLLM inspects it in a subprocess."""

from ascend_models_deepseek.deepseek_v4.model import AscendDeepseekV4ForCausalLM
from ascend_models_deepseek.deepseek_v4.mtp import DeepSeekV4MTP

__all__ = ["AscendDeepseekV4ForCausalLM", "DeepSeekV4MTP"]
