"""DeepSeek-V4's key-value compressor (paper section 2.3, equations 9 to 12 and 20 to 23).

Every token contributes a key-value row and a gate row per series. When the last token of a
window arrives, one entry is the gate-softmax mean of the window's rows, channel by channel. c4
entries overlap: they also read the previous window through a second series.
"""

from __future__ import annotations

import torch
from ascend_ops_core.cpu_kernels import CpuKernels

from ascend_attention.ops.compressor import reference

_cpu = CpuKernels("ascend_attention.ops.compressor.cpu")

__all__ = ["compress_windows", "project_states"]


def project_states(
    hidden: torch.Tensor, wkv_wgate: torch.Tensor, ape: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """State rows of some tokens: key-value series, then gate series with its position bias.

    Args:
        hidden: ``[T, H]``.
        wkv_wgate: ``[2 * S, H]``.
        ape: ``[ratio, S]`` float32, bias of the gate by position within the window.
        position: ``[T]`` int64, position of every token within its request.

    Returns:
        ``[T, 2 * S]`` float32.
    """
    kernels = _cpu.usable(hidden, wkv_wgate, ape, position)
    if kernels is not None and kernels.supports(hidden, wkv_wgate, ape):
        return kernels.project_states(hidden, wkv_wgate, ape, position)
    return reference.project_states(hidden, wkv_wgate, ape, position)


def compress_windows(
    state_rows: torch.Tensor, first_entry: torch.Tensor, overlap: int
) -> torch.Tensor:
    """Pool windows of compressor states.

    Args:
        state_rows: ``[N, overlap * ratio, 2 * overlap * D]`` float32: for each entry its tokens
            in order, each with key-value series and then gate series (position bias included).
            With ``overlap`` 2 the first ``ratio`` rows are the previous window; they are read
            through the first series and the entry's own window through the second.
        first_entry: ``[N]`` bool, entries without a previous window; their first ``ratio`` rows
            are ignored whatever they hold.
        overlap: 1 or 2.

    Returns:
        ``[N, D]`` float32, before norm and rotation.
    """
    return reference.compress_windows(state_rows, first_entry, overlap)
