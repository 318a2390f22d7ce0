"""Drafts from the text itself: what followed the last tokens where they stood before.

Saxena, 2023, "Prompt lookup decoding"; the rules are those of vLLM's
``v1/spec_decode/ngram_proposer.py``. The longest run of ``shortest`` to ``longest`` last tokens
that also stands further in front is looked up, at the first of several places, and what follows
there is drafted. The copy may overlap the tokens that were looked up, and ends with the text.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import INDICES, require_at_least, require_dtype, require_shape
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_specdec.ops.verification import MAX_DRAFTS

__all__ = ["propose_ngrams"]

_cpu = CpuKernels("ascend_specdec.ops.ngram.cpu")


def propose_ngrams(
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    *,
    shortest: int,
    longest: int,
    most: int,
    limit: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draft at most ``most`` tokens for each request.

    Args:
        tokens: ``[R, L]`` int32 or int64, rows in unit steps; the text of each request, anything
            behind it.
        lengths: ``[R]`` int32 or int64, tokens of each request, at most ``L``; a request of fewer
            than 2 gets no drafts.
        shortest: least tokens to look up, at least 1.
        longest: most tokens to look up.
        most: ``K``, 0 to 128.
        limit: no draft lies at this position or behind it: the longest context of the model.

    Returns:
        Drafts ``[R, K]`` int32 with -1 behind the last, and their numbers ``[R]`` int32.

    Raises:
        InvalidInputError: shapes, dtypes or numbers that do not belong together.
    """
    require_shape("tokens", tokens, None, None)
    require_dtype("tokens", tokens, INDICES)
    require_shape("lengths", lengths, tokens.shape[0])
    require_dtype("lengths", lengths, INDICES)
    require_at_least("shortest", shortest, 1)
    require_at_least("longest", longest, shortest)
    require_at_least("limit", limit, 0)
    if not 0 <= most <= MAX_DRAFTS:
        raise InvalidInputError(
            f"most={most}", f"a request has 0 to {MAX_DRAFTS} drafts", "Draft fewer tokens a step."
        )
    if tokens.shape[1] > 1 and tokens.stride(1) != 1:
        raise InvalidInputError(
            f"tokens with strides {list(tokens.stride())}",
            "its rows lie in unit steps",
            "Pass tokens.contiguous().",
        )
    if not tokens.numel() or not most:
        drafts = torch.full((tokens.shape[0], most), -1, dtype=torch.int32, device=tokens.device)
        return drafts, torch.zeros_like(lengths, dtype=torch.int32)
    kernels = _cpu.usable(tokens, lengths)
    if kernels is not None:
        found: tuple[torch.Tensor, torch.Tensor] = kernels.propose_ngrams(
            tokens, lengths, shortest, longest, most, limit
        )
        return found
    drafts, counts = _PROPOSE_NGRAMS(tokens, lengths, shortest, longest, most, limit)
    return drafts, counts


_PROPOSE_NGRAMS = declare(
    __name__,
    "propose_ngrams(Tensor tokens, Tensor lengths, int shortest, int longest, int most, int limit)"
    " -> (Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=lambda tokens, lengths, shortest, longest, most, limit: (
        tokens.new_empty((tokens.shape[0], most), dtype=torch.int32),
        tokens.new_empty(tokens.shape[0], dtype=torch.int32),
    ),
)
