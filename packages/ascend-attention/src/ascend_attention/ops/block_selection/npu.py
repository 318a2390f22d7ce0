"""Limits of the scores and the selection of blocks on NPUs.

torch_npu has no operator for either: vllm-ascend's are its own. Not run on hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_MOST_WIDTH = 256
_MOST_HEADS = 64
_ROWS = 16
# The compiler for A5 crashes on tiles of 16 rows of 16-bit values.
_ROWS_OF_HALVES = {"A5": 32}
_MOST_CANDIDATES = 8192
_MOST_KEPT = 64


def supports_block_scores_triton(
    facts: DeviceFacts,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    columns: int,
    first_block: int,
    block_stride: int,
    init_blocks: int,
    local_blocks: int,
) -> Support:
    """Blocks of a multiple of 16 rows, on A5 of 32 where values have 16 bits; unit strides."""
    rows = _ROWS_OF_HALVES.get(facts.family, _ROWS) if key_cache.element_size() == 2 else _ROWS
    return first_refusal(
        (query.dtype in FLOATS, f"queries of {query.dtype}, the kernel takes float"),
        (
            key_cache.shape[1] % rows == 0,
            f"blocks of {key_cache.shape[1]} rows, the kernel reads tiles of {rows}",
        ),
        (
            query.shape[1] <= _MOST_HEADS,
            f"{query.shape[1]} heads, the kernel takes {_MOST_HEADS}",
        ),
        (
            query.shape[2] <= _MOST_WIDTH,
            f"heads of width {query.shape[2]}, the kernel takes {_MOST_WIDTH}",
        ),
        (
            key_cache.stride(2) == 1,
            f"keys with stride {key_cache.stride(2)} inside, the kernel reads stride 1",
        ),
        (
            block_table.stride(1) == 1,
            f"a table with stride {block_table.stride(1)} inside, the kernel reads stride 1",
        ),
    )


def supports_best_blocks_triton(
    facts: DeviceFacts,
    scores: torch.Tensor,
    ids: torch.Tensor | None,
    top_k: int,
    first_block: int,
    block_stride: int,
) -> Support:
    """As many candidates as a row of the unified buffer holds with what is made of them."""
    return first_refusal(
        (
            scores.shape[2] <= _MOST_CANDIDATES,
            f"{scores.shape[2]} candidates, the kernel keeps {_MOST_CANDIDATES} in the unified "
            "buffer",
        ),
        (top_k <= _MOST_KEPT, f"top_k={top_k}, the kernel goes over the candidates {_MOST_KEPT} "
         "times at most"),
    )  # fmt: skip
