"""AscendReferencePlatform: the whole stack on a CPU, inside the real engine."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from ascend_models_deepseek.vllm import check_request as check_deepseek
from ascend_models_deepseek.vllm import has_latent_caches
from ascend_models_kimi.vllm import check_request as check_kimi
from ascend_models_kimi.vllm import has_recurrent_states
from ascend_models_minimax.vllm import check_request as check_minimax
from ascend_models_minimax.vllm import has_block_caches
from ascend_specdec.vllm import check_speculation
from vllm.platforms.cpu import CpuPlatform

from ascend_vllm_plugin.compat.eplb_switch import check_eplb
from ascend_vllm_plugin.compressed_caches import (
    has_compressed_caches,
    set_block_size,
)
from ascend_vllm_plugin.latent_caches import set_latent_block_size
from ascend_vllm_plugin.thread_binding import choose_binding
from ascend_vllm_plugin.vllm_models import (
    check_vllm_models,
    has_vllm_latents,
    prepare_vllm_latents,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)

_BIND = "VLLM_CPU_OMP_THREADS_BIND"
_chosen: str | None = None


class AscendReferencePlatform(CpuPlatform):
    """vLLM's CPU platform, able to serve models with latent and compressed caches."""

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Apply vLLM's CPU settings, and undo those that assume MLA cannot run on a CPU.

        Every model's workers get their cores here: vLLM refuses more of them than NUMA nodes.
        """
        scheduler = vllm_config.scheduler_config
        chunked = scheduler.enable_chunked_prefill
        most_tokens = scheduler.max_num_batched_tokens
        check_eplb(vllm_config)
        check_speculation(vllm_config)
        check_vllm_models(vllm_config)
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "ascend_vllm_plugin.reference_worker.ReferenceWorker"
        super().check_and_update_config(vllm_config)
        latent = has_latent_caches(vllm_config.model_config)
        blocks = has_block_caches(vllm_config.model_config)
        states = has_recurrent_states(vllm_config.model_config)
        compressed = has_compressed_caches(vllm_config.model_config)
        upstream = has_vllm_latents(vllm_config.model_config)
        if not any((latent, blocks, states, compressed, upstream)):
            _bind_threads(vllm_config)
            return
        scheduler.enable_chunked_prefill = chunked
        scheduler.max_num_batched_tokens = most_tokens
        check_deepseek(vllm_config)
        if states:
            # vLLM sets the size of a block once it knows that of a state.
            check_kimi(vllm_config)
        elif blocks:
            check_minimax(vllm_config)
        elif upstream:
            prepare_vllm_latents(vllm_config, "cpu")
        elif latent:
            set_latent_block_size(vllm_config, "cpu")
        else:
            set_block_size(vllm_config, "cpu")
        _bind_threads(vllm_config)


def _bind_threads(vllm_config: VllmConfig) -> None:
    global _chosen
    # What an earlier engine of this process was given is not the user's wish.
    if os.environ.get(_BIND, "auto") not in ("auto", _chosen):
        return
    os.environ.pop(_BIND, None)
    binding = choose_binding(vllm_config.parallel_config.world_size)
    _chosen = None if binding is None else binding.value
    if binding is not None:
        os.environ[_BIND] = binding.value
        logger.info("%s=%s: %s", _BIND, binding.value, binding.reason)
