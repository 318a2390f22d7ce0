"""Lets vLLM's runner capture graphs with communicators that are not CUDA's.

Upstream symbol: ``graph_capture`` as ``vllm.v1.worker.gpu_model_runner`` imports it from
``vllm.distributed.parallel_state`` (0.27.1). It asserts that a group's communicator is CUDA's or
XPU's, although it only asks theirs for a custom all-reduce, which an NPU has none of.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.distributed.parallel_state import GraphCaptureContext


@contextmanager
def graph_capture(
    device: torch.device, graph_capture_context: GraphCaptureContext | None = None
) -> Iterator[GraphCaptureContext]:
    """Make a stream current whose work follows that of the stream so far, and yield it."""
    npu: Any = torch.npu  # type: ignore[attr-defined]
    context = graph_capture_context or GraphCaptureContext(npu.Stream(device=device))
    stream: Any = context.stream
    stream.wait_stream(npu.current_stream())
    with npu.stream(stream):
        yield context


def use_npu_graph_capture() -> None:
    """Replace the runner's function for this process; may be called repeatedly."""
    from vllm.v1.worker import gpu_model_runner

    gpu_model_runner.graph_capture = graph_capture
