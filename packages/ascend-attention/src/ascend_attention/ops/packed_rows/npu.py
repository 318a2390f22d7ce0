"""Limits of the packed rows on NPUs.

CANN's ``aclnnKvCompressEpilog`` writes these records on A5, but no torch_npu wheel has it. Not run
on hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.ops.quantization.formats import exists_on
from ascend_ops_core.support import Support, first_refusal

WIDEST = 2048


def supports_quantize_kv_rows_triton(
    facts: DeviceFacts,
    packed: torch.Tensor,
    rows: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    rotary: int,
) -> Support:
    """Where float8_e4m3fn exists, since nothing else reads the records; at most 2048 values."""
    return first_refusal(
        exists_on(facts, torch.float8_e4m3fn),
        (
            rows.shape[1] <= WIDEST,
            f"rows of {rows.shape[1]} values, the kernel takes {WIDEST}",
        ),
    )
