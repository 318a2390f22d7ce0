"""What vLLM's model registry imports; kept thin because vLLM inspects it in a subprocess."""

from ascend_models_kimi.kimi_k3.multimodal import AscendKimiK3ForConditionalGeneration
from ascend_models_kimi.kimi_linear.model import AscendKimiLinearForCausalLM

__all__ = [
    "AscendKimiK3ForConditionalGeneration",
    "AscendKimiLinearForCausalLM",
]
