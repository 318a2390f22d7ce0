"""The gated delta rule on a CPU: products over chunks for prompts, a fused loop for few tokens."""

from __future__ import annotations

import torch
from ascend_ops_core.cpu_kernels import CpuKernels

from ascend_attention.ops.gated_delta_rule import chunked, reference

_cpu = CpuKernels("ascend_attention.ops.gated_delta_rule.cpu")


def recurrent_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state_indices: torch.Tensor,
    accepted: torch.Tensor | None,
    scale: float,
    normalize: bool,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.gated_delta_rule.recurrent_gated_delta_rule`."""
    given = query, key, value, decay, beta, state, cu_seqlens, state_indices, accepted
    kernels = _cpu.usable(*given)
    if kernels is not None and kernels.supports(query, beta, state):
        found: torch.Tensor = kernels.recurrent_gated_delta_rule(*given, scale, normalize)
        return found
    return reference.recurrent_gated_delta_rule(*given, scale, normalize)


def chunk_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state_indices: torch.Tensor,
    has_state: torch.Tensor,
    scale: float,
    normalize: bool,
    chunks: torch.Tensor | None,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.gated_delta_rule.chunk_gated_delta_rule`."""
    return chunked.chunk_gated_delta_rule(
        query, key, value, decay, beta, state, cu_seqlens, state_indices, has_state, scale,
        normalize,
    )  # fmt: skip
