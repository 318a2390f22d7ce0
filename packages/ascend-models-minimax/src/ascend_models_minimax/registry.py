"""What vLLM's model registry imports; kept thin because vLLM inspects it in a subprocess."""

from ascend_models_minimax.minimax_m3.model import AscendMiniMaxM3SparseForCausalLM
from ascend_models_minimax.minimax_m3.mtp import AscendMiniMaxM3MTP
from ascend_models_minimax.minimax_m3.multimodal import (
    AscendMiniMaxM3SparseForConditionalGeneration,
)

__all__ = [
    "AscendMiniMaxM3MTP",
    "AscendMiniMaxM3SparseForCausalLM",
    "AscendMiniMaxM3SparseForConditionalGeneration",
]
