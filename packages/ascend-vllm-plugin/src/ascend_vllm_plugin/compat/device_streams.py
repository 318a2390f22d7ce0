"""Gives the model runner streams and events of the NPU.

Upstream symbols: ``torch.cuda.Stream``, ``Event``, ``current_stream``, ``default_stream``,
``stream`` and ``set_stream`` as vLLM 0.27.1 uses them in ``vllm.v1.worker.gpu_model_runner`` and
``vllm.v1.spec_decode``, for copies beside the main stream. It has no device-neutral spelling there;
its own XPU runner replaces the same names.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

NAMES = ("Stream", "Event", "current_stream", "default_stream", "stream", "set_stream")
"""Names of ``torch.cuda`` that stand for those of ``torch.npu`` in a worker's process."""


def use_npu_streams() -> None:
    """Replace them for this process, which has no CUDA device; may be called repeatedly."""
    npu: Any = torch.npu  # type: ignore[attr-defined]
    for name in NAMES:
        ours = getattr(npu, name)
        # torch's compiler refuses one function under two names.
        setattr(torch.cuda, name, ours if isinstance(ours, type) else partial(ours))
