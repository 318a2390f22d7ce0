"""DeepSeek-V4's key-value compressor (paper section 2.3, equations 9 to 12 and 20 to 23).

Every token contributes a key-value row and a gate row per series. When the last token of a
window arrives, one entry is the gate-softmax mean of the window's rows, channel by channel. c4
entries overlap: they also read the previous window through a second series.
"""

from __future__ import annotations

import torch

from ascend_attention.ops.compressor import reference

__all__ = ["compress_windows"]


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
