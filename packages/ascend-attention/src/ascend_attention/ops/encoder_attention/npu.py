"""Encoder attention by ``npu_fused_infer_attention_score``, and the limits of all implementations.

Sequences of one length that follow each other share a call (layout BSND): in layout TND the
operator takes heads of 128 and 192 alone, which no encoder here has. ``npu_fusion_attention`` takes
any lengths, but its documentation says "training only". Not run on hardware.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

from ascend_attention.ops.paged_attention.runs import equal_runs

_NAME = "npu_fused_infer_attention_score"
_DTYPES = (torch.bfloat16, torch.float16)
_WIDEST = 512
_MOST_HEADS = 256
_MOST_GROUPED = 64
_MOST_VALUES = 65534


def encoder_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    scale: float,
    ends: Sequence[int],
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.encoder_attention.encoder_attention`."""
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    for run in equal_runs(ends):
        part = slice(run.start, run.start + run.sequences * run.length)
        batched = (
            one[part].unflatten(0, (run.sequences, run.length)) for one in (query, key, value)
        )
        attended, _ = torch.ops.npu.npu_fused_infer_attention_score(
            *batched,
            num_heads=query.shape[1],
            num_key_value_heads=key.shape[1],
            scale=scale,
            input_layout="BSND",
        )
        out[part] = attended.flatten(0, 1)
    return out


def supports_encoder_attention(
    facts: DeviceFacts,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    scale: float,
    ends: Sequence[int],
) -> Support:
    """A2 and A3, halves, lengths on the host, heads of a multiple of 16 up to 512."""
    _, heads, width = query.shape
    return first_refusal(
        (
            facts.family in ("A2", "A3"),
            f"device family {facts.family}, {_NAME} is documented for A2, A3",
        ),
        (
            query.dtype in _DTYPES,
            f"queries of {query.dtype}, {_NAME} takes torch.bfloat16, torch.float16",
        ),
        (
            query.numel() > 0 and max(ends, default=0) > 0,
            f"no tokens, or lengths that only the device knows, {_NAME} takes the host's",
        ),
        (
            heads <= _MOST_HEADS and heads <= _MOST_GROUPED * key.shape[1],
            f"{heads} heads with {key.shape[1]} key heads, {_NAME} takes {_MOST_HEADS}, and "
            f"{_MOST_GROUPED} for each key head",
        ),
        (
            width <= _WIDEST and width % 16 == 0,
            f"heads of {width}, {_NAME} takes multiples of 16 up to {_WIDEST}",
        ),
        (
            heads * width <= _MOST_VALUES,
            f"{heads * width} values of a token, {_NAME} takes {_MOST_VALUES}",
        ),
        (
            all(x.is_contiguous() for x in (query, key, value)),
            f"queries, keys or values with gaps, {_NAME} needs them contiguous",
        ),
    )


def supports_encoder_attention_triton(
    facts: DeviceFacts,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    scale: float,
    ends: Sequence[int],
) -> Support:
    """Heads of up to 512 values without gaps inside."""
    return first_refusal(
        (
            query.dtype in FLOATS,
            f"queries of {query.dtype}, the kernel takes float32, bfloat16, float16",
        ),
        (
            query.shape[2] <= _WIDEST,
            f"heads of {query.shape[2]} values, a tile of 16 of them is cut for {_WIDEST}",
        ),
        (
            query.stride(2) == key.stride(2) == value.stride(2) == 1,
            "heads with gaps inside, the kernel reads stride 1",
        ),
    )
