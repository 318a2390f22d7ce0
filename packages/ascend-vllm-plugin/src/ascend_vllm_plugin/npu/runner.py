"""NPUModelRunner: vLLM's V1 model runner on an NPU."""

from __future__ import annotations

from typing import Any

import torch
from ascend_attention.vllm import register as register_attention
from ascend_attention.vllm.dense import AscendAttentionBackend, AscendPackedAttentionBackend
from ascend_specdec.vllm import finish_runner, prepare_runner
from vllm.config import VllmConfig
from vllm.model_executor.model_loader.utils import get_model_architecture
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from ascend_vllm_plugin.compat.bind_kv_cache import allow_several_caches_per_layer
from ascend_vllm_plugin.compat.device_streams import use_npu_streams
from ascend_vllm_plugin.compat.graph_capture import use_npu_graph_capture
from ascend_vllm_plugin.compat.kernels import replace_kernels
from ascend_vllm_plugin.compat.qwen_warmup import skip_qwen_warmup
from ascend_vllm_plugin.compat.state_copies import use_state_copies
from ascend_vllm_plugin.eplb import start_balancing
from ascend_vllm_plugin.npu.graphs import ACLGraphWrapper


class NPUModelRunner(GPUModelRunner):
    """vLLM's runner; what it would do on CUDA alone is replaced in :mod:`compat`.

    Args:
        vllm_config: the engine's config.
        device: the NPU.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        use_npu_streams()
        use_npu_graph_capture()
        replace_kernels()
        skip_qwen_warmup()
        use_state_copies()
        allow_several_caches_per_layer()
        prepare_runner()
        super().__init__(vllm_config, device)
        finish_runner(self)
        self.cascade_attn_enabled = False

    def load_model(self, load_dummy_weights: bool = False) -> None:
        """Load the model, balance its experts, and wrap it for graphs, where that is asked for."""
        # Imports the model's module, whose own layers may have ours in their place.
        get_model_architecture(self.model_config)
        register_attention()
        super().load_model(load_dummy_weights)
        start_balancing(self)
        mode = self.compilation_config.cudagraph_mode
        if mode is None or not mode.has_full_cudagraphs():
            return
        model = self.get_model()
        buffers = [model.static_buffers] if hasattr(model, "static_buffers") else []
        self.model = ACLGraphWrapper(model, self.vllm_config, buffers=buffers)
        drafter = getattr(self, "drafter", None)
        if drafter is not None and hasattr(drafter, "model"):
            drafter.model = getattr(drafter.model, "runnable", drafter.model)

    def _determine_batch_execution_and_padding(self, **given: Any) -> Any:
        """As vLLM does, but parts of prompts never run in the graphs of steps with drafts.

        vLLM tells these by their lengths alone. A part of a prompt that is as long leaves its state
        where a step with drafts leaves that of its last draft.
        """
        if self.num_spec_tokens and self.model_config.is_hybrid:
            count = given["num_reqs"]
            lengths, batch = given["num_scheduled_tokens_np"][:count], self.input_batch
            behind = batch.num_computed_tokens_cpu[: len(lengths)] + lengths
            known = batch.num_tokens_no_spec[: len(lengths)]
            if bool(((lengths > 1) & (behind <= known)).any()):
                given["force_eager"] = True
        return super()._determine_batch_execution_and_padding(**given)

    def _reshape_kv_cache_tensors(
        self, kv_cache_raw_tensors: dict[str, torch.Tensor], kernel_block_sizes: list[int]
    ) -> dict[str, torch.Tensor]:
        """As vLLM does; a draft's keys and values may lie in blocks with rows of other layers."""
        tensors = self.kv_cache_config.kv_cache_tensors
        packed = {name for one in tensors if one.block_stride for name in one.shared_by}
        ours = [
            group
            for group in self._kv_cache_spec_attn_group_iterator()
            if group.backend is AscendAttentionBackend and packed.issuperset(group.layer_names)
        ]
        for group in ours:
            group.backend = AscendPackedAttentionBackend
        caches: dict[str, torch.Tensor] = super()._reshape_kv_cache_tensors(
            kv_cache_raw_tensors, kernel_block_sizes
        )
        for name in (name for group in ours for name in group.layer_names):
            caches[name] = caches[name].transpose(0, 1)
        return caches

    def _init_kv_zero_meta(self) -> None:
        """Nothing: a row is written before it is read, or masked where it was not."""
