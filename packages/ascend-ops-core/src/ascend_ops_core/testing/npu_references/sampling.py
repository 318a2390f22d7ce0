"""Filters of logits."""

from __future__ import annotations

import torch

from ascend_ops_core.testing.npu_references.limits import (
    FLOATS,
    require,
    require_dtype,
    require_rank,
)
from ascend_ops_core.testing.npu_references.registry import reference

_MAX_K = 1024


@reference("npu_top_k_top_p", documented=("A2", "A3"))
def npu_top_k_top_p(
    logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None
) -> torch.Tensor:
    """Sets to -inf what is below the k-th largest value, then what lies outside the top p.

    Step by step as documented: rows are sorted ascending, values below the k-th largest (ties are
    kept) go, and of the rest those whose cumulative probability from the smallest is at most
    ``1 - p`` go; the largest always stays.

    Limits: logits [B, V] of float16, bfloat16, float32; p [B] of the same dtype in [0, 1]; k int32
    [B] in [1, min(1024, V)]; not both None.

    Assumed: probabilities and their sums are float32.
    """
    op = "npu_top_k_top_p"
    require_dtype(op, "logits", logits, FLOATS)
    require_rank(op, "logits", logits, 2, 2)
    require(p is not None or k is not None, op, "p and k are both None", "give one of them")
    batch, vocabulary = logits.shape
    require_dtype(op, "p", p, (logits.dtype,))
    require_dtype(op, "k", k, (torch.int32,))
    for name, one in (("p", p), ("k", k)):
        if one is not None:
            require(tuple(one.shape) == (batch,), op, f"{name} {list(one.shape)}", f"[{batch}]")
    values, places = logits.float().sort(dim=-1, stable=True)
    if k is not None:
        most = min(_MAX_K, vocabulary)
        inside = bool(((k >= 1) & (k <= most)).all())
        require(inside, op, f"k={k.tolist()}", f"each is 1 to {most}")
        threshold = values.gather(1, (vocabulary - k.long())[:, None])
        values = values.masked_fill(values < threshold, float("-inf"))
    if p is not None:
        inside = bool(((p >= 0) & (p <= 1)).all())
        require(inside, op, f"p={p.tolist()}", "each is 0 to 1")
        outside = values.softmax(-1).cumsum(-1) <= 1 - p.float()[:, None]
        outside[:, -1] = False
        values = values.masked_fill(outside, float("-inf"))
    return torch.empty_like(values).scatter_(1, places, values).to(logits.dtype)
