"""Lets ``enable_eplb`` be set where this project's experts are balanced.

Upstream symbol: ``vllm.config.parallel.current_platform`` (0.27.1). ``ParallelConfig`` refuses
``enable_eplb`` on every platform but CUDA and ROCm, since vLLM's own balancer needs their events;
this project's (:mod:`ascend_fused_moe.vllm.eplb`) needs none. In that module nothing else asks
whether the platform is like CUDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.compressed_caches import has_compressed_caches

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class _Balancing:
    """The platform, but that experts can be balanced on it."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def is_cuda_alike(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)


def allow_eplb() -> None:
    """Let ``ParallelConfig`` take ``enable_eplb``; may be called repeatedly."""
    from vllm.config import parallel

    if not isinstance(parallel.current_platform, _Balancing):
        parallel.current_platform = _Balancing(parallel.current_platform)


def check_eplb(vllm_config: VllmConfig) -> None:
    """Refuse ``enable_eplb`` for models whose experts are vLLM's own.

    Raises:
        InvalidInputError: such a model.
    """
    model = vllm_config.model_config
    if vllm_config.parallel_config.enable_eplb and not has_compressed_caches(model):
        raise InvalidInputError(
            "enable_eplb=True",
            "of the models that are served here only DeepSeek-V4's experts can be balanced",
            "Leave enable_eplb unset.",
        )
