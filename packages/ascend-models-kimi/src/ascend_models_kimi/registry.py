"""What vLLM's model registry imports; kept thin because vLLM inspects it in a subprocess."""

from ascend_models_kimi.kimi_k3.dspark import AscendK3DSparkForCausalLM
from ascend_models_kimi.kimi_k3.mtp import AscendKimiK3MTP
from ascend_models_kimi.kimi_k3.multimodal import AscendKimiK3ForConditionalGeneration
from ascend_models_kimi.kimi_linear.model import AscendKimiLinearForCausalLM

__all__ = [
    "AscendK3DSparkForCausalLM",
    "AscendKimiK3ForConditionalGeneration",
    "AscendKimiK3MTP",
    "AscendKimiLinearForCausalLM",
]
