"""What vLLM's model registry imports; kept thin because vLLM inspects it in a subprocess."""

from ascend_specdec.llama_eagle3.model import AscendEagle3LlamaForCausalLM
from ascend_specdec.llama_eagle3.vwn import Eagle3VwnLlamaForCausalLM
from ascend_specdec.qwen3_blocks.dflash2 import DFlash2Qwen3ForCausalLM
from ascend_specdec.qwen3_blocks.dspark import AscendQwen3DSparkForCausalLM
from ascend_specdec.qwen3_blocks.model import AscendDFlashQwen3ForCausalLM

__all__ = [
    "AscendDFlashQwen3ForCausalLM",
    "AscendEagle3LlamaForCausalLM",
    "AscendQwen3DSparkForCausalLM",
    "DFlash2Qwen3ForCausalLM",
    "Eagle3VwnLlamaForCausalLM",
]
