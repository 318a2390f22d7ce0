"""Limits of the compressor's kernels; torch_npu has no public operator for it.

Not run on hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import SUPPORTED, Support, first_refusal


def supports_project_states_triton(
    facts: DeviceFacts,
    hidden: torch.Tensor,
    wkv_wgate: torch.Tensor,
    ape: torch.Tensor,
    position: torch.Tensor,
) -> Support:
    """A float32 bias; everything else is as the operator's definition takes it."""
    return first_refusal(
        (ape.dtype == torch.float32, f"ape of {ape.dtype}, the kernel adds float32"),
    )


def supports_compress_windows_triton(
    facts: DeviceFacts, state_rows: torch.Tensor, first_entry: torch.Tensor, overlap: int
) -> Support:
    """Everything: rows with gaps inside are copied first."""
    return SUPPORTED


def supports_compress_paged_windows_triton(
    facts: DeviceFacts,
    state_cache: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    first_entry: torch.Tensor,
    overlap: int,
) -> Support:
    """Rows without gaps inside."""
    return first_refusal(
        (
            state_cache.stride(2) == 1,
            f"state rows with stride {state_cache.stride(2)} inside, the kernel reads stride 1",
        ),
    )
