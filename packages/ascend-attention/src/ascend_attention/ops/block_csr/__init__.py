"""Which queries selected a block: a selection of blocks by query, turned around.

An operator that goes through a context block by block, and reads each block once for all queries
that attend to it, takes the selection in this form: vllm-ascend's operator for prefill on A5, and
:mod:`ascend_attention.ops.block_sparse_attention` for many queries on a CPU.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import require_at_least, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["BY_LEVEL", "BY_REQUEST", "k2q_csr"]

BY_REQUEST = 0
"""Row order: all blocks of the first request, then all of the second, ..."""

BY_LEVEL = 1
"""Row order: block 0 of every request, then block 1 of every request that has one, ..."""


def k2q_csr(
    selected: torch.Tensor,
    cu_seqlens: torch.Tensor,
    cu_block_lens: torch.Tensor,
    order_method: int = BY_REQUEST,
    *,
    rows: int | None = None,
    q_global_offset: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compressed sparse rows of blocks with the queries that selected them.

    Args:
        selected: ``[T, H, K]`` int32 numbers of blocks within the query's request, each at most
            once for a query and head. Those below 0 or behind the request's last block are left
            out, as are queries behind the last request.
        cu_seqlens: ``[R + 1]`` int32, queries of all requests before each, and of all.
        cu_block_lens: ``[R + 1]`` int32, the same of blocks.
        order_method: order of the rows, :data:`BY_REQUEST` or :data:`BY_LEVEL`.
        rows: blocks of all requests, or more. Left out, ``cu_block_lens`` is asked for it, for
            which the host waits.
        q_global_offset: number queries in the step rather than in their request.

    Returns:
        ``row_ptr [H, rows + 1]``, ``q_ind [H, T * K]`` and ``slot [H, T * K]``, int32. Row ``r`` of
        head ``h`` is ``row_ptr[h, r]`` to ``row_ptr[h, r + 1]``: the queries in ascending order,
        and the place of the block in each one's selection. Behind the last row stands -1.

    Raises:
        InvalidInputError: another shape or dtype, or an unknown order.

    Source: vllm-ascend's ``npu_k2q_csr`` (csrc), whose output this is.
    """
    require_dtype("selected", selected, (torch.int32,))
    require_shape("selected", selected, None, None, None)
    require_shape("cu_seqlens", cu_seqlens, None)
    require_at_least("length of cu_seqlens", cu_seqlens.shape[0], 1)
    require_shape("cu_block_lens", cu_block_lens, cu_seqlens.shape[0])
    for name, value in (("cu_seqlens", cu_seqlens), ("cu_block_lens", cu_block_lens)):
        require_dtype(name, value, (torch.int32,))
    if order_method not in (BY_REQUEST, BY_LEVEL):
        raise InvalidInputError(
            f"order_method={order_method}",
            f"rows are ordered by request ({BY_REQUEST}) or by level ({BY_LEVEL})",
            "Choose one of them.",
        )
    if rows is None:
        rows = int(cu_block_lens[-1])
    require_at_least("rows", rows, 0)
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _K2Q_CSR(
        selected, cu_seqlens, cu_block_lens, order_method, rows, q_global_offset
    )
    return result


def _fake(
    selected: torch.Tensor,
    cu_seqlens: torch.Tensor,
    cu_block_lens: torch.Tensor,
    order_method: int,
    rows: int,
    q_global_offset: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens, heads, places = selected.shape
    entries = selected.new_empty((heads, tokens * places))
    return selected.new_empty((heads, rows + 1)), entries, torch.empty_like(entries)


_K2Q_CSR = declare(
    __name__,
    "k2q_csr(Tensor selected, Tensor cu_seqlens, Tensor cu_block_lens, int order_method, int rows, "
    "bool q_global_offset) -> (Tensor, Tensor, Tensor)",
    npu=("torch",),
    fake=_fake,
)
