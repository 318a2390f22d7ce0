"""The low-rank correction by which a block drafter's places learn of each other (DSpark)."""

from __future__ import annotations

import torch

from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.registry import declare

__all__ = ["markov_logits"]


def markov_logits(
    base: torch.Tensor,
    tokens: torch.Tensor,
    embedding: torch.Tensor,
    projection: torch.Tensor,
    scale: float = 1.0,
) -> torch.Tensor:
    """Logits of the next token, given the one in front of it: a step of the Markov head.

    ``L[r, v] = base[r, v] + scale * sum_k embedding[tokens[r], k] projection[v, k]`` (vLLM:
    ``model_executor/models/qwen3_dspark.py: DSparkMarkovHead``).

    Args:
        base: ``[R, D]``, float32, bfloat16 or float16, what the parallel pass says; ``D`` is the
            draft's vocabulary.
        tokens: ``[R]`` int32 or int64, in the target's vocabulary.
        embedding: ``[V, K]``, float32, bfloat16 or float16; ``V`` is the target's vocabulary.
        projection: ``[D, K]`` of the same dtype.
        scale: factor on the correction.

    Returns:
        ``[R, D]`` float32, accumulated in float32.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other.
    """
    require_shape("base", base, None, None)
    require_dtype("base", base, FLOATS)
    require_shape("tokens", tokens, base.shape[0])
    require_dtype("tokens", tokens, INDICES)
    require_shape("embedding", embedding, None, None)
    require_dtype("embedding", embedding, FLOATS)
    require_shape("projection", projection, base.shape[1], embedding.shape[1])
    require_dtype("projection", projection, (embedding.dtype,))
    if not base.numel():
        return base.float()
    result: torch.Tensor = _MARKOV_LOGITS(base, tokens, embedding, projection, scale)
    return result


_MARKOV_LOGITS = declare(
    __name__,
    "markov_logits(Tensor base, Tensor tokens, Tensor embedding, Tensor projection, float scale) "
    "-> Tensor",
    npu=("triton", "torch"),
    fake=lambda base, *rest: base.new_empty(base.shape, dtype=torch.float32),
)
