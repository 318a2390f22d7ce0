"""The grammar bitmask in Triton: a tile is words by bits, so that no word is looked up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.tiling import next_power_of_two, tile_rows

_BITS = 32

# The word of each bit, its conjunction with the bit, the logit and the result.
_LIVE_BYTES = 20


@triton.jit
def _power_of_two(exponent):
    """``1 << exponent`` for exponents 0 to 31; NPUs shift a vector by a vector per element."""
    small = tl.where(exponent < 31, exponent, 0)
    # The exponent of a float32 is where its bits say so.
    power = ((small + 127) * (1 << 23)).to(tl.float32, bitcast=True).to(tl.int32)
    return tl.where(exponent < 31, power, -(1 << 31))


@triton.jit
def _grammar_kernel(
    logits_ptr,
    bitmask_ptr,
    rows_ptr,
    vocabulary,
    logits_stride,
    bitmask_stride,
    blocks,
    programs,
    WORDS: tl.constexpr,
):
    words = tl.arange(0, WORDS)
    bits = tl.arange(0, 32)
    chosen = _power_of_two(bits)
    lanes = words[:, None] * 32 + bits[None, :]
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        mask_row = unit // blocks
        word = (unit - mask_row * blocks) * WORDS
        row = tl.load(rows_ptr + mask_row).to(tl.int32)
        if row >= 0:
            packed = tl.load(
                bitmask_ptr + as_int64(mask_row) * bitmask_stride + word + words,
                mask=words < (vocabulary + 31) // 32 - word,
                other=0,
            )
            here = logits_ptr + as_int64(row) * logits_stride + word * 32 + lanes
            inside = lanes < vocabulary - word * 32
            x = tl.load(here, mask=inside, other=0.0).to(tl.float32)
            allowed = (packed[:, None] & chosen[None, :]) != 0
            kept = tl.where(allowed, x, float("-inf"))
            tl.store(here, kept.to(logits_ptr.dtype.element_ty), mask=inside)


def apply_grammar_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor) -> None:
    """See :func:`ascend_ops_core.ops.sampling.apply_grammar_bitmask`."""
    vocabulary = logits.shape[1]
    bitmask = bitmask if bitmask.stride(1) == 1 else bitmask.contiguous()
    words = tile_rows(
        current_facts(),
        _BITS,
        streamed=2 * logits.element_size(),
        local=_LIVE_BYTES,
        per_row=8,
        maximum=next_power_of_two(bitmask.shape[1]),
    )
    blocks = -(-vocabulary // (_BITS * words))
    arguments = {
        "logits_ptr": logits,
        "bitmask_ptr": bitmask,
        "rows_ptr": rows.contiguous(),
        "vocabulary": vocabulary,
        "logits_stride": logits.stride(0),
        "bitmask_stride": bitmask.stride(0),
        "blocks": blocks,
        "programs": rows.shape[0] * blocks,
    }
    launch(_grammar_kernel, rows.shape[0] * blocks, arguments, {"WORDS": words})
