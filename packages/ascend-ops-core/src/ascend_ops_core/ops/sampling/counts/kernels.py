"""The token counts in Triton: one scalar and one atomic transfer of 4 bytes per token.

An NPU has no scattered addition: a vector of addresses becomes a loop that handles each element
with about ten scalar accesses. Here the loop is explicit, reads the id, and leaves the addition to
the transfer. Comparing all ids with all tokens would need no scalar at all, but 64 vector lanes
against a vocabulary of 150,000 lose by far.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two

_TOKENS = 256
"""Tokens of a unit of work: enough to make its start cheap, few enough to spread a prompt."""


@triton.jit
def _bin_counts_kernel(
    tokens_ptr,
    counts_ptr,
    length,
    vocabulary,
    row_stride,
    parts,
    programs,
    TOKENS: tl.constexpr,
):
    lanes = tl.arange(0, 8)  # the smallest vector; a scalar would be put together per token
    one = tl.where(lanes < 1, 1, 0)
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        row = unit // parts
        first = (unit - row * parts) * TOKENS
        row_ptr = tokens_ptr + as_int64(row) * row_stride + first
        counts = counts_ptr + as_int64(row) * vocabulary
        for t in range(0, TOKENS):
            if t < length - first:
                token = tl.load(row_ptr + t).to(tl.int32)
                if (token >= 0) & (token < vocabulary):
                    tl.atomic_add(counts + token + lanes, one, mask=lanes < 1)


def token_bin_counts_and_mask(
    tokens: torch.Tensor, vocabulary: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.sampling.token_bin_counts_and_mask`."""
    rows, length = tokens.shape
    counts = torch.zeros((rows, vocabulary), dtype=torch.int32, device=tokens.device)
    if tokens.stride(1) != 1:
        tokens = tokens.contiguous()
    part = min(_TOKENS, next_power_of_two(length))
    parts = -(-length // part)
    arguments = {
        "tokens_ptr": tokens,
        "counts_ptr": counts,
        "length": length,
        "vocabulary": vocabulary,
        "row_stride": tokens.stride(0),
        "parts": parts,
        "programs": rows * parts,
    }
    launch(_bin_counts_kernel, rows * parts, arguments, {"TOKENS": part})
    return counts, counts > 0
