"""Rows once for each of their experts, in the order of experts, and back.

What the dispatchers do around the experts' products. On a CPU the definition runs at once, and
makes no row for what is no choice; elsewhere shapes must not depend on values, so rows are left
over.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import INDICES, require_at_least, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_fused_moe import permutation

__all__ = ["combine_rows", "permute_rows"]


def permute_rows(
    x: torch.Tensor, ids: torch.Tensor, experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Copy each row once for each of its choices; the rows of one expert keep their order.

    Args:
        x: ``[N, H]``; ``N`` may be 0.
        ids: ``[N, k]`` int32 or int64; an id outside ``[0, experts)`` is no choice.
        experts: number of experts, at least 1.

    Returns:
        Rows ``[R, H]`` in the order of experts, for each choice its row or -1, ``[N, k]`` int64,
        and the rows of each expert, ``[experts]`` int64. On a CPU ``R`` is the number of choices,
        on a device ``N * k``; the rows behind hold anything.

    Raises:
        InvalidInputError: shapes or dtypes that do not belong together, or no expert.
    """
    require_shape("x", x, None, None)
    require_shape("ids", ids, x.shape[0], None)
    require_dtype("ids", ids, INDICES)
    require_at_least("experts", experts, 1)
    if x.device.type == "cpu":
        return permutation.permute(x, ids.long(), experts)
    rows, index, counts = _PERMUTE_ROWS(x, ids, experts)
    return rows, index, counts


def combine_rows(
    rows: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, *, complete: bool = False
) -> torch.Tensor:
    """The weighted sum over each row's choices, in float32 and in the order of the choices.

    Args:
        rows: ``[R, H]``; ``R`` may be 0.
        index: ``[N, k]`` int64: the row of each choice, or -1.
        weights: ``[N, k]`` float32.
        complete: no index is -1, which the caller knows without a look at them.

    Returns:
        ``[N, H]`` in the dtype of ``rows``; a row without choices is 0. torch_npu rounds weights to
        that dtype first.

    Raises:
        InvalidInputError: shapes or dtypes that do not belong together.
    """
    require_shape("rows", rows, None, None)
    require_shape("index", index, None, None)
    require_dtype("index", index, (torch.int64,))
    if weights.shape != index.shape:
        raise InvalidInputError(
            f"weights {list(weights.shape)} and index {list(index.shape)}",
            "both are [N, k]",
            "Pass the weights of the rows that were permuted.",
        )
    require_dtype("weights", weights, (torch.float32,))
    if rows.device.type == "cpu":
        return permutation.unpermute(rows, index, weights)
    result: torch.Tensor = _COMBINE_ROWS(rows, index, weights, complete)
    return result


_PERMUTE_ROWS = declare(
    __name__,
    "permute_rows(Tensor x, Tensor ids, int experts) -> (Tensor, Tensor, Tensor)",
    npu=("torch_npu", "torch"),
    fake=lambda x, ids, experts: (
        x.new_empty(ids.numel(), x.shape[1]),
        torch.empty(ids.shape, dtype=torch.int64, device=ids.device),
        torch.empty(experts, dtype=torch.int64, device=ids.device),
    ),
)
_COMBINE_ROWS = declare(
    __name__,
    "combine_rows(Tensor rows, Tensor index, Tensor weights, bool complete) -> Tensor",
    npu=("torch_npu", "torch"),
    fake=lambda rows, index, weights, complete: rows.new_empty(index.shape[0], rows.shape[1]),
)
