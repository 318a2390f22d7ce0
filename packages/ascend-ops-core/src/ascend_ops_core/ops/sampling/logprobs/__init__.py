"""Which tokens' log-probabilities a request is told."""

from __future__ import annotations

import torch

from ascend_ops_core.checks import INDICES, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["logprob_token_ids"]


def logprob_token_ids(
    sampled: torch.Tensor,
    top_ids: torch.Tensor | None,
    requests: torch.Tensor,
    custom_counts: torch.Tensor,
    custom_ids: torch.Tensor,
    columns: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids whose log-probabilities are wanted: the sampled one, then the request's or the top ones.

    Column 0 of row ``b`` is ``sampled[b]``. If request ``r = requests[b]`` asked for
    ``n = custom_counts[r] > 0`` tokens, columns 1 to n are ``custom_ids[r, :n]``; else columns 1
    to K are ``top_ids[b]``. Other columns hold 0 and are not valid (vLLM:
    ``v1/worker/gpu/sample/logprob.py: compute_topk_scores``).

    Args:
        sampled: ``[B]`` int32 or int64; ``B`` may be 0.
        top_ids: ``[B, K]`` int32 or int64 with ``K <= columns``, or None for ``K = 0``.
        requests: ``[B]`` int32 or int64, rows of the next two.
        custom_counts: ``[R]`` int32 or int64, each at most ``columns`` and ``C``.
        custom_ids: ``[R, C]`` int32 or int64.
        columns: columns after the first, at least 0.

    Returns:
        Ids ``[B, 1 + columns]`` int64 and their validity ``[B, 1 + columns]`` bool.

    Raises:
        InvalidInputError: another shape or dtype, or more top ids than columns.
    """
    require_shape("sampled", sampled, None)
    require_shape("requests", requests, sampled.shape[0])
    require_shape("custom_counts", custom_counts, None)
    require_shape("custom_ids", custom_ids, custom_counts.shape[0], None)
    if top_ids is not None:
        require_shape("top_ids", top_ids, sampled.shape[0], None)
        require_dtype("top_ids", top_ids, INDICES)
    for name, tensor in (
        ("sampled", sampled),
        ("requests", requests),
        ("custom_counts", custom_counts),
        ("custom_ids", custom_ids),
    ):
        require_dtype(name, tensor, INDICES)
    needed = 0 if top_ids is None else top_ids.shape[1]
    if columns < needed:
        raise InvalidInputError(
            f"columns={columns}", f"{needed} top ids take as many", "Ask for more columns."
        )
    ids, valid = _LOGPROB_TOKEN_IDS(sampled, top_ids, requests, custom_counts, custom_ids, columns)
    return ids, valid


def _fake(
    sampled: torch.Tensor,
    top_ids: torch.Tensor | None,
    requests: torch.Tensor,
    custom_counts: torch.Tensor,
    custom_ids: torch.Tensor,
    columns: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (sampled.shape[0], 1 + columns)
    return (
        torch.empty(shape, dtype=torch.int64, device=sampled.device),
        torch.empty(shape, dtype=torch.bool, device=sampled.device),
    )


_LOGPROB_TOKEN_IDS = declare(
    __name__,
    "logprob_token_ids(Tensor sampled, Tensor? top_ids, Tensor requests, Tensor custom_counts, "
    "Tensor custom_ids, int columns) -> (Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=_fake,
)
