"""Limits of the indexer's kernels.

torch_npu's ``npu_lightning_indexer`` and ``npu_quant_lightning_indexer`` know no compression: they
tell what a query sees from its position among uncompressed keys. Not run on hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.ops.quantization.formats import exists_on
from ascend_ops_core.support import Support, first_refusal

MOST_HEADS = 128
MOST_WIDTH = 256


def supports_indexer_scores_triton(
    facts: DeviceFacts,
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    key_scale: torch.Tensor | None,
    block_table: torch.Tensor,
    request: torch.Tensor,
    visible: torch.Tensor,
    width: int,
) -> Support:
    """A dtype of the device, keys without gaps inside, and sides that fit the matrix unit."""
    return first_refusal(
        exists_on(facts, key_cache.dtype),
        (
            query.dtype == key_cache.dtype,
            f"queries of {query.dtype} and keys of {key_cache.dtype}, the kernel takes one dtype",
        ),
        (
            key_cache.stride(2) == 1,
            f"keys with stride {key_cache.stride(2)} inside, the kernel reads stride 1",
        ),
        (
            key_scale is None or key_scale.stride(1) == 1,
            "scales of a block that are not beside each other, the kernel reads stride 1",
        ),
        (
            block_table.stride(1) == 1,
            f"a table with stride {block_table.stride(1)} inside, the kernel reads stride 1",
        ),
        (
            query.shape[1] <= MOST_HEADS,
            f"{query.shape[1]} heads, the kernel takes {MOST_HEADS}",
        ),
        (
            query.shape[2] <= MOST_WIDTH,
            f"heads of width {query.shape[2]}, the kernel takes {MOST_WIDTH}",
        ),
    )


def supports_select_entries_triton(
    facts: DeviceFacts,
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    key_scale: torch.Tensor | None,
    block_table: torch.Tensor,
    request: torch.Tensor,
    visible: torch.Tensor,
    top_k: int,
    most_entries: int,
) -> Support:
    """As the scores."""
    return supports_indexer_scores_triton(
        facts,
        query,
        head_weights,
        key_cache,
        key_scale,
        block_table,
        request,
        visible,
        most_entries,
    )


def supports_quantize_index_rows_triton(
    facts: DeviceFacts,
    key_cache: torch.Tensor,
    scale_cache: torch.Tensor,
    rows: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
) -> Support:
    """Any float to what the device has of int8 and float8_e4m3fn; keys without gaps inside."""
    return first_refusal(
        (rows.dtype in FLOATS, f"rows of {rows.dtype}, the kernel takes float"),
        exists_on(facts, key_cache.dtype),
        (
            key_cache.stride(2) == 1,
            f"keys with stride {key_cache.stride(2)} inside, the kernel writes stride 1",
        ),
    )
