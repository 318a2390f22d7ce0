"""Limits of block-sparse attention on NPUs.

torch_npu has no such operator: ``npu_sparse_attention_score`` and its form for prefill are
vllm-ascend's own. Not run on hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_WIDEST = 256
_MOST_PLACES = 256
_ROWS = 16
# The compiler for A5 crashes on tiles of 16 rows of 16-bit values.
_ROWS_OF_HALVES = {"A5": 32}


def supports_block_sparse_attention_triton(
    facts: DeviceFacts,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
) -> Support:
    """Heads of at most 256; blocks of a multiple of 16 rows; no gaps inside a row.

    On A5 a multiple of 32 rows of 16-bit values.
    """
    rows = _ROWS_OF_HALVES.get(facts.family, _ROWS) if key_cache.element_size() == 2 else _ROWS
    return first_refusal(
        (query.dtype in FLOATS, f"queries of {query.dtype}, the kernel takes float"),
        (
            query.shape[2] <= _WIDEST,
            f"heads of width {query.shape[2]}, the kernel takes {_WIDEST}",
        ),
        (
            selected.shape[2] <= _MOST_PLACES,
            f"{selected.shape[2]} blocks a query, the kernel takes {_MOST_PLACES}",
        ),
        (
            key_cache.shape[1] % rows == 0,
            f"blocks of {key_cache.shape[1]} rows, the kernel reads tiles of {rows}",
        ),
        (
            key_cache.stride(3) == value_cache.stride(3) == 1,
            "a cache with gaps inside a row, the kernel reads stride 1",
        ),
        (
            block_table.stride(1) == 1,
            f"a table with stride {block_table.stride(1)} inside, the kernel reads stride 1",
        ),
    )
