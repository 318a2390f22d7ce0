"""NPUWorker: vLLM's GPU worker on an NPU."""

from __future__ import annotations

import gc
import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from ascend_ops_core.errors import InvalidInputError
from vllm import envs
from vllm.platforms import current_platform
from vllm.utils.mem_utils import MemorySnapshot
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.utils import report_usage_stats
from vllm.v1.worker.gpu_worker import CompilationTimes, Worker, init_worker_distributed_environment
from vllm.v1.worker.utils import request_memory
from vllm.v1.worker.workspace import init_workspace_manager

from ascend_vllm_plugin.npu import memory
from ascend_vllm_plugin.npu.config import AscendConfig
from ascend_vllm_plugin.npu.profiler import make_profiler
from ascend_vllm_plugin.npu.runner import NPUModelRunner

logger = logging.getLogger(__name__)


class NPUWorker(Worker):
    """One process that drives one NPU. Memory profiling and KV sizing are vLLM's own.

    Attributes:
        attention_bytes: of the largest step, set aside beside what was measured.
    """

    profiler: Any
    attention_bytes: int = 0

    def init_device(self) -> None:
        """Take the device, join the other ranks, and build the model runner.

        Raises:
            InvalidInputError: there is no device for this rank, or vLLM's second runner is asked
                for.
        """
        AscendConfig.of(self.vllm_config).apply()
        if self.use_v2_model_runner:
            raise InvalidInputError(
                "vLLM's model runner V2", "it runs on CUDA only", "Set VLLM_USE_V2_MODEL_RUNNER=0."
            )
        self.local_rank += self._ranks_of_other_replicas()
        count = torch.accelerator.device_count()
        visible = current_platform.device_control_env_var
        if self.local_rank >= count:
            raise InvalidInputError(
                f"local rank {self.local_rank}",
                f"this process sees {count} NPU(s)",
                f"Lower the parallel sizes, or list more in {visible}.",
            )
        index = current_platform.logical_device_id_to_visible_device_id(self.local_rank)
        self.device = torch.device("npu", index)
        current_platform.set_device(self.device)
        current_platform.check_if_supports_dtype(self.model_config.dtype)
        # Before the memory snapshot, so that what the collectives reserve is not offered to caches.
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            self.distributed_init_method,
            self.local_rank,
            current_platform.dist_backend,
        )
        set_random_seed(self.model_config.seed)
        gc.collect()
        torch.accelerator.empty_cache()
        self.init_snapshot = MemorySnapshot(device=self.device)
        self.requested_memory = request_memory(self.init_snapshot, self.cache_config)
        init_workspace_manager(self.device, num_ubatches=1)
        self.model_runner = NPUModelRunner(self.vllm_config, self.device)
        if self.rank == 0:
            report_usage_stats(self.vllm_config)

    @torch.inference_mode()
    def determine_available_memory(self) -> int:
        """Bytes for the caches: vLLM's figure, less what it does not measure here.

        That is what graphs take, as on CUDA, what attention takes in the largest step, and what
        moving experts takes beyond a step's activations.
        """
        available = int(super().determine_available_memory())
        if self.cache_config.kv_cache_memory_bytes:
            return available
        self.attention_bytes = memory.attention_bytes(self)
        moving = max(0, memory.rebalance_bytes(self) - self.peak_activation_memory)
        self.available_kv_cache_memory_bytes -= self.attention_bytes + moving
        available -= self.attention_bytes + moving
        mode = self.vllm_config.compilation_config.cudagraph_mode
        if not mode or not envs.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS:
            return available
        graphs = self.model_runner.profile_cudagraph_memory()
        self.cudagraph_memory_estimate = graphs
        self.peak_activation_memory += graphs
        self.available_kv_cache_memory_bytes -= graphs
        return available - graphs

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Capture the graphs, and say what this rank's memory is used for."""
        times = super().compile_or_warm_up_model()
        logger.info("memory of rank %d: %s", self.rank, memory.describe(self.memory_figures()))
        return times

    def memory_figures(self) -> dict[str, int]:
        """What this rank has allocated, see :func:`ascend_vllm_plugin.npu.memory.figures`."""
        return memory.figures(self)

    def _ranks_of_other_replicas(self) -> int:
        """Local ranks in front of this data-parallel replica's."""
        parallel = self.parallel_config
        if parallel.assigned_physical_gpu_ids is not None:
            # vLLM has given each replica its own list of devices, which local ranks index.
            return 0
        outside = ("ray", "external_launcher")
        if parallel.distributed_executor_backend in outside:
            return 0
        if parallel.data_parallel_backend == "ray" or parallel.nnodes_within_dp != 1:
            return 0
        replica = parallel.data_parallel_rank_local
        if replica is None:
            replica = parallel.data_parallel_index
        return int(replica * parallel.pipeline_parallel_size * parallel.tensor_parallel_size)

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[Any]:
        """No pool: sleep mode, which needs one, does not exist here."""
        return nullcontext()

    def sleep(self, level: int = 1) -> None:
        """Refused, see :func:`_refuse_sleep`."""
        _refuse_sleep()

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Refused, see :func:`_refuse_sleep`."""
        _refuse_sleep()

    def profile(self, is_start: bool = True, profile_prefix: str | None = None) -> None:
        """Start or stop the profiler, see :mod:`ascend_vllm_plugin.npu.profiler`.

        Raises:
            InvalidInputError: there is none, or not as it was asked for.
        """
        if is_start and self.profiler is None:
            name = f"rank{self.rank}"
            self.profiler = make_profiler(
                self.profiler_config,
                f"{profile_prefix}_{name}" if profile_prefix else name,
                self.local_rank,
            )
        super().profile(is_start=is_start, profile_prefix=profile_prefix)


def _refuse_sleep() -> NoReturn:
    raise InvalidInputError(
        "sleep mode", "memory of an NPU cannot be given back and kept addressed", "Stop the engine."
    )
