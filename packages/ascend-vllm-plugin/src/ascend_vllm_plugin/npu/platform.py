"""AscendNPUPlatform: what vLLM asks about an Ascend NPU."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import torch
from ascend_attention.caches import DEVICE_CACHES
from ascend_models_deepseek.vllm import check_request as check_deepseek
from ascend_models_deepseek.vllm import has_latent_caches
from ascend_models_kimi.vllm import check_request as check_kimi
from ascend_models_kimi.vllm import has_recurrent_states
from ascend_models_minimax.vllm import check_request as check_minimax
from ascend_models_minimax.vllm import has_block_caches
from ascend_ops_core.devices import current_facts
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.vllm import check_speculation
from vllm.platforms.interface import Platform, PlatformEnum

from ascend_vllm_plugin.compat.eplb_switch import check_eplb
from ascend_vllm_plugin.compressed_caches import (
    has_compressed_caches,
    set_block_size,
)
from ascend_vllm_plugin.latent_caches import set_latent_block_size
from ascend_vllm_plugin.npu import simulated
from ascend_vllm_plugin.npu.config import AscendConfig
from ascend_vllm_plugin.planning.captures import plan_captures
from ascend_vllm_plugin.vllm_models import (
    check_vllm_models,
    has_vllm_latents,
    prepare_vllm_latents,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)

_PACKAGE = "ascend_vllm_plugin.npu"


class AscendNPUPlatform(Platform):
    """An Ascend NPU, or the simulated one. Not run on hardware."""

    _enum = PlatformEnum.OOT
    device_name = "npu"
    device_type = "npu"
    dispatch_key = "PrivateUse1"
    ray_device_key = "NPU"
    # gloo carries the simulated device's collectives, whose memory is the host's.
    dist_backend = "gloo" if simulated.installed() else "hccl"
    device_control_env_var = "ASCEND_RT_VISIBLE_DEVICES"
    # Functions of vLLM that it compiles by themselves stay as they are: no compiler is here.
    simple_compile_backend = "eager"

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """Dtypes of a model, the preferred one first."""
        here = current_facts().dtypes.value or ()
        return [one for one in (torch.bfloat16, torch.float16, torch.float32) if one in here]

    @classmethod
    def import_kernels(cls) -> None:
        """Nothing: vLLM's own kernels are for other devices."""

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        """Run models uncompiled unless told otherwise, so that their layers are our operators."""
        from vllm.config import CompilationMode

        if vllm_config.compilation_config.mode is None:
            vllm_config.compilation_config.mode = CompilationMode.NONE

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Choose our worker, switch off what does not exist here, and check the model.

        Raises:
            InvalidInputError: a setting, a model or a device that cannot be served.
        """
        from vllm.config import CUDAGraphMode

        AscendConfig.of(vllm_config).apply()
        check_eplb(vllm_config)
        check_speculation(vllm_config)
        check_vllm_models(vllm_config)
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = f"{_PACKAGE}.worker.NPUWorker"
        parallel.disable_custom_all_reduce = True
        # Replicas agree on the size of a step from the host's numbers; no device needs to wait.
        parallel.disable_nccl_for_dp_synchronization = True
        compilation = vllm_config.compilation_config
        asked = compilation.cudagraph_mode
        if asked not in (CUDAGraphMode.NONE, CUDAGraphMode.FULL_DECODE_ONLY):
            if asked is not None:
                logger.info("graphs hold whole decode steps (FULL_DECODE_ONLY), not %s", asked.name)
            compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
        _trim_captures(vllm_config)
        # vLLM would compile kernels of CUDA's libraries.
        kernels = vllm_config.kernel_config
        kernels.enable_jit_warmup = kernels.enable_cutedsl_warmup = False
        kernels.enable_flashinfer_autotune = False
        # A forked process could not start the device that its parent has started.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        scheduler = vllm_config.scheduler_config
        if vllm_config.speculative_config is not None and scheduler.async_scheduling:
            logger.info(
                "async scheduling is off while drafting: caches are indexed by context lengths "
                "that the host must know when a step starts"
            )
            scheduler.async_scheduling = False
        if vllm_config.model_config is not None:
            vllm_config.model_config.disable_cascade_attn = True
        if has_compressed_caches(vllm_config.model_config):
            _check_compressed(vllm_config)
        elif has_latent_caches(vllm_config.model_config):
            _check_latent(vllm_config)
        elif has_recurrent_states(vllm_config.model_config):
            _family_with_caches("latent")
            check_kimi(vllm_config)
        elif has_block_caches(vllm_config.model_config):
            _family_with_caches("block-sparse")
            check_minimax(vllm_config)
        elif has_vllm_latents(vllm_config.model_config):
            _check_uncompiled(vllm_config)
            prepare_vllm_latents(vllm_config, _family_with_caches("latent"))
        else:
            _check_uncompiled(vllm_config)

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: VllmConfig) -> None:
        """Keep the block size of our caches, which the device's table fixes."""
        model = vllm_config.model_config
        ours = has_compressed_caches, has_latent_caches, has_block_caches
        # Beside recurrent states vLLM makes blocks as large as a state.
        alone = has_vllm_latents(model) and not model.is_hybrid
        if not alone and not any(has(model) for has in ours):
            super().update_block_size_for_backend(vllm_config)

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """The backend of ordinary models; latent and compressed caches bring their own.

        Raises:
            InvalidInputError: another backend is asked for, or the model's attention is none that
                it has.
        """
        from ascend_attention.vllm.dense import AscendAttentionBackend
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        if selected_backend not in (None, AttentionBackendEnum.CUSTOM):
            raise InvalidInputError(
                f"attention backend {selected_backend.name}",
                "it is for other devices",
                "Leave --attention-backend unset.",
            )
        reasons = AscendAttentionBackend.validate_configuration(
            device_capability=None, **attn_selector_config._asdict()
        )
        if reasons:
            raise InvalidInputError(
                f"a model with {attn_selector_config}",
                f"attention on an NPU refuses it: {'; '.join(reasons)}",
                "Leave --block-size and --kv-cache-dtype unset, or serve another model.",
            )
        place = f"{AscendAttentionBackend.__module__}.{AscendAttentionBackend.__qualname__}"
        register_backend(AttentionBackendEnum.CUSTOM, place)
        return place

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Make ``device`` this thread's current one."""
        torch.accelerator.set_device_index(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed the random numbers of every device."""
        _npu().manual_seed_all(seed)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Name of the soc."""
        return str(_npu().get_device_name(device_id))

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes of device memory."""
        return int(_npu().get_device_properties(device_id).total_memory)

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """Largest number of bytes in use since the last call."""
        torch.accelerator.reset_peak_memory_stats(device)
        return float(torch.accelerator.max_memory_allocated(device))

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        """Vector cores, one of which runs one program of a kernel."""
        return current_facts().vector_cores

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """Refuse a model dtype that the device does not compute in.

        Raises:
            InvalidInputError: it is none of the family's.
        """
        facts = current_facts()
        if dtype not in (facts.dtypes.value or ()):
            raise InvalidInputError(
                f"dtype {dtype}", f"{facts.family} does not compute in it", "Use bfloat16."
            )

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """The class of collectives on device tensors."""
        kind = "SimulatedCommunicator" if simulated.installed() else "HCCLCommunicator"
        return f"{_PACKAGE}.communicator.{kind}"

    @classmethod
    def graph_pool_handle(cls) -> Any:
        """A pool that graphs share their memory in."""
        return _npu().graph_pool_handle()

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """Decode steps are captured as graphs."""
        return True

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """Caches of several kinds share one pool of blocks."""
        return True


def _trim_captures(vllm_config: VllmConfig) -> None:
    """Capture no more graphs than the device has streams for, and say so."""
    compilation, parallel = vllm_config.compilation_config, vllm_config.parallel_config
    sizes = compilation.cudagraph_capture_sizes
    if not sizes or not compilation.cudagraph_mode:
        return
    plan = plan_captures(
        sizes,
        requests=vllm_config.scheduler_config.max_num_seqs,
        tokens_per_request=1 + vllm_config.num_speculative_tokens,
        tensor_parallel=parallel.tensor_parallel_size,
        context_parallel=parallel.decode_context_parallel_size,
    )
    if plan.dropped:
        logger.warning("%s", plan.reason)
        compilation.cudagraph_capture_sizes = list(plan.sizes)
        compilation.max_cudagraph_capture_size = plan.sizes[-1]


def _check_uncompiled(vllm_config: VllmConfig) -> None:
    """Refuse a compiler, of which there is none for the operators here."""
    from vllm.config import CompilationMode

    mode = vllm_config.compilation_config.mode
    if mode != CompilationMode.NONE:
        raise InvalidInputError(
            f"compilation mode {mode.name}",
            "on an NPU models run uncompiled; whole decode steps are captured as graphs",
            "Leave it out, or pass -cc.mode=none.",
        )


def _check_latent(vllm_config: VllmConfig) -> None:
    family = _family_with_caches("latent")
    check_deepseek(vllm_config)
    set_latent_block_size(vllm_config, family)


def _check_compressed(vllm_config: VllmConfig) -> None:
    family = _family_with_caches("sparse")
    check_deepseek(vllm_config)
    set_block_size(vllm_config, family)
    if AscendConfig.of(vllm_config).cache_dtype == "model":
        logger.info("caches keep the model's dtype")
    else:
        rows = DEVICE_CACHES[family]
        logger.info(
            "caches hold key-value rows in %s and indexer keys in %s, as %s keeps them; "
            "additional_config cache_dtype=model keeps the model's dtype",
            rows.kv_dtype,
            rows.index_dtype,
            family,
        )


def _family_with_caches(attention: str) -> str:
    family = current_facts().family
    if family not in DEVICE_CACHES:
        raise InvalidInputError(
            f"a model with {attention} attention on {family}",
            "it has neither its operators nor a Triton compiler",
            "Serve the model on A2, A3 or A5.",
        )
    return family


def _npu() -> Any:
    return torch.npu  # type: ignore[attr-defined]
