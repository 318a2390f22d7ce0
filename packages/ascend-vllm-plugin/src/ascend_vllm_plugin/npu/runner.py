"""NPUModelRunner: vLLM's V1 model runner on an NPU."""

from __future__ import annotations

import torch
from vllm.config import VllmConfig
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from ascend_vllm_plugin.compat.bind_kv_cache import allow_several_caches_per_layer
from ascend_vllm_plugin.compat.device_streams import use_npu_streams
from ascend_vllm_plugin.compat.kernels import replace_kernels


class NPUModelRunner(GPUModelRunner):
    """vLLM's runner; what it would do on CUDA alone is replaced in :mod:`compat`.

    Args:
        vllm_config: the engine's config.
        device: the NPU.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        use_npu_streams()
        replace_kernels()
        allow_several_caches_per_layer()
        super().__init__(vllm_config, device)
        self.cascade_attn_enabled = False

    def _init_kv_zero_meta(self) -> None:
        """Nothing: a row is written before it is read, or masked where it was not."""
