"""The profiler of a worker: torch_npu's where it is loaded, torch's for the host otherwise."""

from __future__ import annotations

import logging
import sys
from typing import Any

from ascend_ops_core.errors import InvalidInputError
from vllm.config import ProfilerConfig
from vllm.profiler.wrapper import TorchProfilerWrapper, WorkerProfiler

from ascend_vllm_plugin.npu import simulated

logger = logging.getLogger(__name__)


class NPUProfiler(WorkerProfiler):
    """``torch_npu.profiler`` over host and device. Not run on hardware.

    Args:
        config: the engine's profiler config.
        worker_name: what the trace is called.
        profiler: the module ``torch_npu.profiler``.
    """

    def __init__(self, config: ProfilerConfig, worker_name: str, profiler: Any) -> None:
        super().__init__(config)
        kinds = profiler.ProfilerActivity
        self._profile = profiler.profile(
            activities=[kinds.CPU, kinds.NPU],
            record_shapes=config.torch_profiler_record_shapes,
            profile_memory=config.torch_profiler_with_memory,
            with_stack=config.torch_profiler_with_stack,
            with_flops=config.torch_profiler_with_flops,
            on_trace_ready=profiler.tensorboard_trace_handler(
                config.torch_profiler_dir, worker_name=worker_name
            ),
        )

    def _start(self) -> None:
        self._profile.start()

    def _stop(self) -> None:
        self._profile.stop()


def make_profiler(config: ProfilerConfig, worker_name: str, local_rank: int) -> WorkerProfiler:
    """The profiler for a worker on an NPU.

    Args:
        config: the engine's profiler config.
        worker_name: what the trace is called.
        local_rank: the worker's rank on this host.

    Raises:
        InvalidInputError: the engine was started without a profiler or with CUDA's, or asks for
            waiting or warm-up steps.
    """
    if config.profiler != "torch":
        raise InvalidInputError(
            f"profiler {config.profiler!r}",
            "a worker on an NPU has torch's profiler, and only if the engine was started so",
            "Start with --profiler-config.profiler=torch and a torch_profiler_dir.",
        )
    steps = config.wait_iterations, config.warmup_iterations
    if any(steps):
        raise InvalidInputError(
            f"wait_iterations={steps[0]}, warmup_iterations={steps[1]}",
            "a worker on an NPU profiles from the first step on",
            "Leave them at 0, and use delay_iterations to start later.",
        )
    module = getattr(sys.modules.get("torch_npu"), "profiler", None)
    if module is not None:
        return NPUProfiler(config, worker_name, module)
    if not simulated.installed():
        raise InvalidInputError(
            "torch_npu.profiler",
            "this process has no torch_npu that brings one",
            "Reinstall torch-npu, or use msprof from CANN.",
        )
    logger.warning("a simulated NPU has no profiler: the trace holds the host's work alone")
    return TorchProfilerWrapper(config, worker_name, local_rank, activities=["CPU"])
