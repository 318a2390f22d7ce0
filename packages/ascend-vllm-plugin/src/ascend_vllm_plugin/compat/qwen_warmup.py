"""Keeps vLLM from launching its own Gated DeltaNet kernels before the first step.

Upstream symbol: ``qwen_triton_warmup`` in ``vllm.model_executor.warmup.kernel_warmup`` (0.27.1).
For Qwen3-Next and Qwen3.5 it compiles Triton kernels for CUDA on any device whose worker is derived
from vLLM's GPU worker, even where the layers run others.
"""

from __future__ import annotations

from typing import Any

__all__ = ["skip_qwen_warmup"]

_NAME = "qwen_triton_warmup"


def skip_qwen_warmup() -> None:
    """Put a function there that does nothing; may be called repeatedly.

    Raises:
        AttributeError: vLLM has no function of that name in that module any more.
    """
    from vllm.model_executor.warmup import kernel_warmup

    getattr(kernel_warmup, _NAME)
    setattr(kernel_warmup, _NAME, _nothing)


def _nothing(runner: Any, model_config: Any) -> None:
    """Our kernels are compiled when they are first launched."""
