"""Sums of decays in Triton, and products by the kind of decay."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch

from ascend_attention.ops.gated_delta_rule.kernels.channels import channel_products
from ascend_attention.ops.gated_delta_rule.kernels.heads import head_products
from ascend_attention.ops.gated_delta_rule.layout import CHUNK
from ascend_attention.ops.gated_delta_rule.tiles import columns_of_sums


@triton.jit
def _sums_kernel(
    decay_ptr,
    table_ptr,
    sums_ptr,
    columns,
    rows,
    programs,
    TILES: tl.constexpr,
    TAKEN: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sums of ``TAKEN`` chunks that are all whole, side by side; of one chunk after another else.

    Chunks of the table follow each other in memory, so where they end tells whether all are whole.
    """
    i = tl.arange(0, CHUNK)
    t = tl.arange(0, TAKEN)
    c = tl.arange(0, BLOCK)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        group = unit // TILES
        column = (unit - group * TILES) * BLOCK
        begin = group * TAKEN
        end = tl.where(begin + TAKEN < rows, begin + TAKEN, rows)
        last = tl.load(table_ptr + end * 2 - 2) + tl.load(table_ptr + end * 2 - 1)
        tokens = last - tl.load(table_ptr + begin * 2)
        taken = tl.where(tokens == TAKEN * CHUNK, TAKEN, 1)
        for chunk in range(begin, end, taken):
            first = tl.load(table_ptr + chunk * 2)
            count = tl.load(table_ptr + chunk * 2 + 1)
            mask = (i < count)[:, None, None] & (t < taken)[None, :, None]
            mask = mask & (c < columns - column)[None, None, :]
            at = as_int64(first) * columns + column + c[None, None, :]
            at = at + i[:, None, None] * columns + t[None, :, None] * (CHUNK * columns)
            decay = tl.load(decay_ptr + at, mask=mask, other=0.0)
            found = tl.cumsum(tl.reshape(decay, (CHUNK, TAKEN * BLOCK)), axis=0)
            tl.store(sums_ptr + at, tl.reshape(found, (CHUNK, TAKEN, BLOCK)), mask=mask)


def products(
    query: torch.Tensor,
    key: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    table: torch.Tensor,
    scale: float,
    normalize: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sums of decays, and products of keys and of queries within every chunk.

    Args:
        query: ``[T, G, K]`` without gaps inside a row.
        key: ``[T, G, K]``, the same.
        decay: ``[T, H]`` or ``[T, H, K]`` float32.
        beta: ``[T, H]``.
        table: from :func:`chunk_table`.
        scale: factor on the queries.
        normalize: divide queries and keys by their lengths.

    Returns:
        The sums, like ``decay``, and ``-A`` and ``P`` of :mod:`..chunked`, ``[T, H, CHUNK]``.
        ``P``, in the keys' dtype, is zero above the diagonal. ``A`` is not written there, but for
        blocks on the diagonal, in which it is zero from the diagonal on.
    """
    columns = decay[0].numel()
    block, taken = columns_of_sums(current_facts(), columns)
    tiles, rows = -(-columns // block), table.shape[0]
    programs = -(-rows // taken) * tiles
    sums = torch.empty(decay.shape, dtype=torch.float32, device=key.device)
    arguments = {
        "decay_ptr": decay.contiguous(),
        "table_ptr": table,
        "sums_ptr": sums,
        "columns": columns,
        "rows": rows,
        "programs": programs,
    }
    constants = {"TILES": tiles, "TAKEN": taken, "CHUNK": CHUNK, "BLOCK": block}
    launch(_sums_kernel, programs, arguments, constants)
    found = head_products if decay.dim() == 2 else channel_products
    return sums, *found(query, key, sums, beta, table, scale, normalize)
