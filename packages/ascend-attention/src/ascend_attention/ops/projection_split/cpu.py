"""The split on a CPU: one pass instead of a dozen small copies."""

from __future__ import annotations

from typing import Any

import torch
from numba import njit, prange

# Below this many elements starting the thread pool costs more than the copies.
_PARALLEL_FROM = 1 << 16
_BITS = {4: torch.int32, 2: torch.int16}


def supports(qkvz: torch.Tensor, ba: torch.Tensor) -> bool:
    """Contiguous."""
    return qkvz.numel() > 0 and qkvz.is_contiguous() and ba.is_contiguous()


def split_qkvz_ba(
    qkvz: torch.Tensor,
    ba: torch.Tensor,
    key_heads: int,
    value_heads: int,
    key_width: int,
    value_width: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.projection_split.split_qkvz_ba`."""
    tokens = qkvz.shape[0]
    packed = qkvz.new_empty(tokens, 2 * key_heads * key_width + value_heads * value_width)
    gate = qkvz.new_empty(tokens, value_heads, value_width)
    b, a = ba.new_empty(tokens, value_heads), ba.new_empty(tokens, value_heads)
    bits = _BITS[qkvz.element_size()]
    kernel = _split_parallel if qkvz.numel() >= _PARALLEL_FROM else _split
    kernel(
        qkvz.view(bits).numpy(),
        ba.view(bits).numpy(),
        (key_heads, value_heads // key_heads, key_width, value_width),
        packed.view(bits).numpy(),
        gate.view(bits).view(tokens, -1).numpy(),
        b.view(bits).numpy(),
        a.view(bits).numpy(),
    )
    return packed, gate, b, a


def _split_body(qkvz, ba, sizes, packed, gate, b, a):  # type: ignore[no-untyped-def]
    heads, group, key_width, value_width = sizes
    values = group * value_width
    of_head = 2 * key_width + 2 * values
    for t in prange(qkvz.shape[0]):
        for h in range(heads):
            at = h * of_head
            for c in range(key_width):
                packed[t, h * key_width + c] = qkvz[t, at + c]
            to = (heads + h) * key_width
            for c in range(key_width):
                packed[t, to + c] = qkvz[t, at + key_width + c]
            to = 2 * heads * key_width + h * values
            at += 2 * key_width
            for c in range(values):
                packed[t, to + c] = qkvz[t, at + c]
            for c in range(values):
                gate[t, h * values + c] = qkvz[t, at + values + c]
            for c in range(group):
                b[t, h * group + c] = ba[t, 2 * h * group + c]
                a[t, h * group + c] = ba[t, (2 * h + 1) * group + c]


_split: Any = njit(cache=True)(_split_body)
_split_parallel: Any = njit(parallel=True, cache=True)(_split_body)
