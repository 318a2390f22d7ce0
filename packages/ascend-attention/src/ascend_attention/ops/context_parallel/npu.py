"""Limits of what ranks exchange that share a context, on NPUs.

torch_npu's ``npu_attention_update`` merges lists of results and logarithms, and gives no logarithm;
here both arrive in one buffer. Not run on hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import SUPPORTED, Support, first_refusal


def supports_pack_attention_states_triton(
    facts: DeviceFacts, outs: torch.Tensor, lses: torch.Tensor, ranks: int
) -> Support:
    """Results of at least one value."""
    return first_refusal((outs.shape[2] > 0, "results of no values, a row has at least one"))


def supports_merge_packed_states_triton(
    facts: DeviceFacts, packed: torch.Tensor, width: int, dtype: torch.dtype
) -> Support:
    """Contiguous parts of at least one value."""
    return first_refusal(
        (width > 0, "results of no values, a row has at least one"),
        (packed.is_contiguous(), "parts with gaps, the kernel reads them side by side"),
    )


def supports_local_tokens_triton(
    facts: DeviceFacts,
    selected: torch.Tensor,
    ranks: int,
    rank: int,
    interleave: int,
    places: int,
) -> Support:
    """Everything."""
    return SUPPORTED
