"""Limits of the vocabulary range's kernel; torch_npu has no operator for it.

Not run on hardware.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal


def supports_mask_vocab_range_triton(
    facts: DeviceFacts,
    ids: torch.Tensor,
    org_start: int,
    org_end: int,
    org_padding: int,
    added_start: int,
    added_end: int,
) -> Support:
    """int32 or int64 ids, compared as int32."""
    end = max(org_end, added_end)
    return first_refusal(
        (
            ids.dtype in (torch.int32, torch.int64),
            f"ids of {ids.dtype}, the kernel takes int32, int64",
        ),
        (end < 2**31, f"a range that ends at {end}, the kernel compares int32"),
    )
