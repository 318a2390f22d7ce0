"""DeepSeek-V4's key-value compressor (paper section 2.3, equations 9 to 12 and 20 to 23).

Every token contributes a key-value row and a gate row per series. When the last token of a
window arrives, one entry is the gate-softmax mean of the window's rows, channel by channel. c4
entries overlap: they also read the previous window through a second series.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.compressor import reference

_cpu = CpuKernels("ascend_attention.ops.compressor.cpu")

__all__ = ["compress_paged_windows", "compress_windows", "project_states"]


def project_states(
    hidden: torch.Tensor, wkv_wgate: torch.Tensor, ape: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """State rows of some tokens: key-value series, then gate series with its position bias.

    Args:
        hidden: ``[T, H]``, float32, bfloat16 or float16; ``T`` may be 0.
        wkv_wgate: ``[2 * S, H]`` of the same dtype.
        ape: ``[ratio, S]`` float32, bias of the gate by position within the window.
        position: ``[T]`` int32 or int64, position of every token within its request, 0 or more
            (padding tokens may have any such position).

    Returns:
        ``[T, 2 * S]`` float32. The product may be rounded to ``hidden``'s dtype before the bias
        is added.

    Raises:
        InvalidInputError: another shape or dtype.

    Source: DeepSeek-V4 paper, equations 9, 10, 20 and 21.
    """
    # Every layer calls this in every step, and the checks cost as much as the rest of the call.
    if not _projection_fits(hidden, wkv_wgate, ape, position):
        _check_projection(hidden, wkv_wgate, ape, position)
    result: torch.Tensor = _PROJECT_STATES(hidden, wkv_wgate, ape, position)
    return result


def compress_windows(
    state_rows: torch.Tensor, first_entry: torch.Tensor, overlap: int
) -> torch.Tensor:
    """Pool windows of compressor states.

    Args:
        state_rows: ``[N, overlap * ratio, 2 * overlap * D]`` float32: for each entry its tokens
            in order, each with key-value series and then gate series (position bias included).
            With ``overlap`` 2 the first ``ratio`` rows are the previous window; they are read
            through the first series and the entry's own window through the second. ``N`` may
            be 0.
        first_entry: ``[N]`` bool, entries without a previous window; their first ``ratio`` rows
            are ignored whatever they hold.
        overlap: 1 or 2. With 1 there is no previous window and ``first_entry`` says nothing.

    Returns:
        ``[N, D]`` float32, before norm and rotation.

    Raises:
        InvalidInputError: another shape, dtype or overlap.

    Source: DeepSeek-V4 paper, equations 11, 12, 22 and 23.
    """
    if state_rows.dim() != 3 or state_rows.dtype != torch.float32:
        require_shape("state_rows", state_rows, None, None, None)
        require_dtype("state_rows", state_rows, (torch.float32,))
    _check_windows(state_rows.shape, first_entry, overlap)
    result: torch.Tensor = _COMPRESS_WINDOWS(state_rows, first_entry, overlap)
    return result


def compress_paged_windows(
    state_cache: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    first_entry: torch.Tensor,
    overlap: int,
) -> torch.Tensor:
    """:func:`compress_windows` of rows that lie in a paged cache, without gathering them first.

    Args:
        state_cache: ``[B, P, 2 * overlap * D]`` float32, a view with any strides of blocks and
            rows.
        block: ``[N, overlap * ratio]`` int32 or int64, the block of every row of every window;
            ``N`` may be 0. A negative block marks a row that does not exist: it is not read and
            has no weight, and an entry without any row (padding) becomes zeros.
        offset: of ``block``'s shape and dtype, the row within its block.
        first_entry: ``[N]`` bool, entries without a previous window; their first ``ratio`` rows
            do not exist either.
        overlap: 1 or 2.

    Returns:
        ``[N, D]`` float32, before norm and rotation.

    Raises:
        InvalidInputError: another shape, dtype or overlap.
    """
    require_shape("state_cache", state_cache, None, None, None)
    require_dtype("state_cache", state_cache, (torch.float32,))
    require_shape("block", block, None, None)
    require_dtype("block", block, INDICES)
    require_shape("offset", offset, *block.shape)
    require_dtype("offset", offset, (block.dtype,))
    _check_windows((*block.shape, state_cache.shape[2]), first_entry, overlap)
    result: torch.Tensor = _COMPRESS_PAGED_WINDOWS(state_cache, block, offset, first_entry, overlap)
    return result


def _projection_fits(
    hidden: torch.Tensor, wkv_wgate: torch.Tensor, ape: torch.Tensor, position: torch.Tensor
) -> bool:
    return (
        hidden.dim() == ape.dim() == wkv_wgate.dim() == 2
        and position.dim() == 1
        and wkv_wgate.shape[0] == 2 * ape.shape[1]
        and wkv_wgate.shape[1] == hidden.shape[1]
        and position.shape[0] == hidden.shape[0]
        and wkv_wgate.dtype == hidden.dtype
        and hidden.dtype in FLOATS
        and position.dtype in INDICES
    )


def _check_projection(
    hidden: torch.Tensor, wkv_wgate: torch.Tensor, ape: torch.Tensor, position: torch.Tensor
) -> None:
    require_shape("hidden", hidden, None, None)
    require_dtype("hidden", hidden, FLOATS)
    require_shape("ape", ape, None, None)
    require_shape("wkv_wgate", wkv_wgate, 2 * ape.shape[1], hidden.shape[1])
    require_dtype("wkv_wgate", wkv_wgate, (hidden.dtype,))
    require_shape("position", position, hidden.shape[0])
    require_dtype("position", position, INDICES)


def _check_windows(shape: Sequence[int], first_entry: torch.Tensor, overlap: int) -> None:
    entries, rows, width = shape
    if overlap not in (1, 2):
        raise InvalidInputError(
            f"overlap={overlap}",
            "an entry reads its own window (1) or the previous one as well (2)",
            "Use ascend_attention.caches.overlap_of(ratio).",
        )
    if rows == 0 or rows % overlap or width == 0 or width % (2 * overlap):
        raise InvalidInputError(
            f"windows of {rows} rows with {width} values",
            f"with overlap {overlap} they are [{overlap} * ratio, {2 * overlap} * D]",
            "Correct the shape of the states or the overlap.",
        )
    if first_entry.shape != (entries,) or first_entry.dtype != torch.bool:
        require_shape("first_entry", first_entry, entries)
        require_dtype("first_entry", first_entry, (torch.bool,))


def _project_states_on_cpu(
    hidden: torch.Tensor, wkv_wgate: torch.Tensor, ape: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    kernels = _cpu.usable(hidden, wkv_wgate, ape, position)
    if kernels is not None and kernels.supports(hidden, wkv_wgate, ape):
        result: torch.Tensor = kernels.project_states(hidden, wkv_wgate, ape, position)
        return result
    return reference.project_states(hidden, wkv_wgate, ape, position)


def _compress_paged_windows_on_cpu(
    state_cache: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    first_entry: torch.Tensor,
    overlap: int,
) -> torch.Tensor:
    kernels = _cpu.usable(state_cache)
    chosen = reference if kernels is None or not kernels.supports_windows(state_cache) else kernels
    result: torch.Tensor = chosen.compress_paged_windows(
        state_cache, block, offset, first_entry, overlap
    )
    return result


def _float32(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


_PROJECT_STATES = declare(
    __name__,
    "project_states(Tensor hidden, Tensor wkv_wgate, Tensor ape, Tensor position) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda hidden, wkv_wgate, ape, position: _float32(
        hidden, hidden.shape[0], wkv_wgate.shape[0]
    ),
    cpu=_project_states_on_cpu,
)

_COMPRESS_WINDOWS = declare(
    __name__,
    "compress_windows(Tensor state_rows, Tensor first_entry, int overlap) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda state_rows, first_entry, overlap: _float32(
        state_rows, state_rows.shape[0], state_rows.shape[2] // (2 * overlap)
    ),
)

_COMPRESS_PAGED_WINDOWS = declare(
    __name__,
    "compress_paged_windows(Tensor state_cache, Tensor block, Tensor offset, Tensor first_entry, "
    "int overlap) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda state_cache, block, offset, first_entry, overlap: _float32(
        state_cache, block.shape[0], state_cache.shape[2] // (2 * overlap)
    ),
    cpu=_compress_paged_windows_on_cpu,
)
