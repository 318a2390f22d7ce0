"""DFlash2's choice among the best tokens of each place: edges between neighbours, and a walk.

B requests have K places with ``k`` candidates each. An edge leads from a candidate of one place to
one of the next; those of the first place start at the anchor, the token that the target chose last.
The walk takes the best edge from where it stands, place by place; it is not a search for the best
path.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["selector_edges", "selector_walk"]

_FLOAT32 = (torch.float32,)


def selector_edges(
    unary: torch.Tensor,
    candidates: torch.Tensor,
    anchors: torch.Tensor,
    predecessors: torch.Tensor,
    successors: torch.Tensor,
    gates: torch.Tensor,
) -> torch.Tensor:
    """Score every edge between the candidates of neighbouring places.

    ``E[b, l, p, c] = u[b, l, c] + sum_r P[pred]_r gates[b, l]_r S[candidates[b, l, c]]_r``, where
    ``pred`` is the anchor for ``l = 0``, whatever ``p``, and ``candidates[b, l - 1, p]`` behind
    that (vLLM 0.32: ``models/qwen3_dflash2.py: CandidateSelector``).

    Args:
        unary: ``[B, K, k]`` float32, the candidates' own scores.
        candidates: ``[B, K, k]`` int32 or int64, tokens.
        anchors: ``[B]`` int32 or int64, tokens.
        predecessors: ``[V, r]``, ``P``; float32, bfloat16 or float16.
        successors: ``[V, r]``, ``S``, of the same dtype.
        gates: ``[B, K, r]`` of the same dtype.

    Returns:
        ``[B, K, k, k]`` float32, accumulated in float32.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other.
    """
    require_shape("unary", unary, None, None, None)
    require_dtype("unary", unary, _FLOAT32)
    batch, places, width = unary.shape
    require_shape("candidates", candidates, batch, places, width)
    require_dtype("candidates", candidates, INDICES)
    require_shape("anchors", anchors, batch)
    require_dtype("anchors", anchors, INDICES)
    require_shape("predecessors", predecessors, None, None)
    require_dtype("predecessors", predecessors, FLOATS)
    require_shape("successors", successors, *predecessors.shape)
    require_dtype("successors", successors, (predecessors.dtype,))
    require_shape("gates", gates, batch, places, predecessors.shape[1])
    require_dtype("gates", gates, (predecessors.dtype,))
    if not unary.numel():
        return unary.new_empty(batch, places, width, width)
    result: torch.Tensor = _SELECTOR_EDGES(
        unary, candidates, anchors, predecessors, successors, gates
    )
    return result


def selector_walk(edges: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """Walk along the best edges, from candidate 0 of the anchor, whose rows are all alike.

    ``i_0 = 0``, ``i_{l+1} = argmax_c E[b, l, i_l, c]``, the lowest ``c`` of several; NaN is no
    candidate, and a row of nothing else goes to candidate 0 (vLLM 0.32:
    ``v1/worker/gpu/spec_decode/dflash2/speculator.py: _selector_walk_kernel``).

    Args:
        edges: ``[B, K, k, k]`` float32 without gaps.
        candidates: ``[B, K, k]`` int32 or int64, tokens; ``k`` is at least 1.

    Returns:
        ``[B, K]`` int32, the token of each place.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other.
    """
    require_shape("candidates", candidates, None, None, None)
    require_dtype("candidates", candidates, INDICES)
    batch, places, width = candidates.shape
    require_shape("edges", edges, batch, places, width, width)
    require_dtype("edges", edges, _FLOAT32)
    if not width:
        raise InvalidInputError(
            "a walk among 0 candidates", "a place has at least 1", "Correct selector_top_k."
        )
    if not edges.is_contiguous():
        raise InvalidInputError(
            f"edges with strides {list(edges.stride())}",
            "they lie one behind the other without gaps",
            "Pass edges.contiguous().",
        )
    if not candidates.numel():
        return candidates.new_empty(batch, places, dtype=torch.int32)
    result: torch.Tensor = _SELECTOR_WALK(edges, candidates)
    return result


_SELECTOR_EDGES = declare(
    __name__,
    "selector_edges(Tensor unary, Tensor candidates, Tensor anchors, Tensor predecessors, "
    "Tensor successors, Tensor gates) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda unary, *rest: unary.new_empty(*unary.shape, unary.shape[-1]),
)
_SELECTOR_WALK = declare(
    __name__,
    "selector_walk(Tensor edges, Tensor candidates) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda edges, candidates: candidates.new_empty(candidates.shape[:2], dtype=torch.int32),
)
