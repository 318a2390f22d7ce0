"""Lets ranks share contexts on a CPU, which vLLM's kernels for the places of tokens cannot.

Upstream symbols (0.27.1): ``vllm.utils.cpu_triton_utils.compute_slot_mapping_kernel`` asserts that
contexts are not shared, and ``eagle_step_slot_mapping_metadata_kernel`` would look draft tokens up
beyond the end of a block table whose entries stand for several ranks' blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ascend_vllm_plugin.compat.kernels import slot_mapping
from ascend_vllm_plugin.compat.kernels.draft import step_slot_mapping


class UnlessShared:
    """Called like the Triton kernel it stands in for: ``kernel[grid](...)``.

    Args:
        upstream: what runs where every rank has whole contexts.
        ours: what runs where ranks share them.
    """

    def __init__(self, upstream: Any, ours: Callable[..., None]) -> None:
        self.upstream = upstream
        self.ours = ours

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        if ranks_sharing_contexts() > 1:
            return self.ours
        kernel: Callable[..., None] = self.upstream[grid]
        return kernel


def ranks_sharing_contexts() -> int:
    """Ranks that share a context with this process."""
    from vllm.distributed.parallel_state import get_dcp_group

    return get_dcp_group().world_size


def allow_shared_contexts() -> None:
    """Put our functions where vLLM's CPU runner looks; may be called repeatedly."""
    from vllm.utils import cpu_triton_utils as upstream

    for name, ours in (
        ("compute_slot_mapping_kernel", slot_mapping),
        ("eagle_step_slot_mapping_metadata_kernel", step_slot_mapping),
    ):
        kernel = getattr(upstream, name)
        if not isinstance(kernel, UnlessShared):
            setattr(upstream, name, UnlessShared(kernel, ours))
