"""How often each token of the vocabulary occurs in each row."""

from __future__ import annotations

import torch

from ascend_ops_core.checks import INDICES, require_at_least, require_dtype, require_shape
from ascend_ops_core.registry import declare

__all__ = ["token_bin_counts_and_mask"]


def token_bin_counts_and_mask(
    tokens: torch.Tensor, vocabulary: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Occurrences of each token id in each row, and whether it occurs.

    The histogram behind the penalties of a sampler (vLLM:
    ``model_executor/layers/utils.py: get_token_bin_counts_and_mask``, whose counts are int64).

    Args:
        tokens: ``[B, T]`` int32 or int64, any strides; ``B`` and ``T`` may be 0. Ids outside of
            ``[0, vocabulary)`` are padding and count nowhere: ``vocabulary`` is what vLLM pads
            with, -1 stands for a token that is not known yet.
        vocabulary: number of ids, at least 1.

    Returns:
        Counts ``[B, vocabulary]`` int32 and the mask ``[B, vocabulary]`` bool.

    Raises:
        InvalidInputError: another shape or dtype, or an empty vocabulary.
    """
    require_shape("tokens", tokens, None, None)
    require_dtype("tokens", tokens, INDICES)
    require_at_least("vocabulary", vocabulary, 1)
    counts, mask = _TOKEN_BIN_COUNTS_AND_MASK(tokens, vocabulary)
    return counts, mask


def _fake(tokens: torch.Tensor, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (tokens.shape[0], vocabulary)
    return (
        torch.empty(shape, dtype=torch.int32, device=tokens.device),
        torch.empty(shape, dtype=torch.bool, device=tokens.device),
    )


_TOKEN_BIN_COUNTS_AND_MASK = declare(
    __name__,
    "token_bin_counts_and_mask(Tensor tokens, int vocabulary) -> (Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=_fake,
)
