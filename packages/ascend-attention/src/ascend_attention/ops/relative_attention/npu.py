"""Relative attention by ``npu_fused_infer_attention_score``, and the limits of all implementations.

Its documentation does not say whether ``pse_shift`` is added before or behind the factor, so
queries are multiplied by factors that do not round. Not run on hardware.
"""

from __future__ import annotations

import math

import torch
from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_NAME = "npu_fused_infer_attention_score"
_DTYPES = (torch.bfloat16, torch.float16)
_WIDEST = 512
_MOST_HEADS = 256
_MOST_VALUES = 65534


def relative_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scale: float
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.relative_attention.relative_attention`."""
    out: torch.Tensor = torch.ops.npu.npu_fused_infer_attention_score(
        query * scale,
        key,
        value,
        pse_shift=bias,
        num_heads=query.shape[2],
        num_key_value_heads=key.shape[2],
        scale=1.0,
        input_layout="BSND",
    )[0]
    return out


def supports_relative_attention(
    facts: DeviceFacts,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    scale: float,
) -> Support:
    """A2 and A3, halves, one bias for all, as many queries as keys, factors that are powers of two.

    Heads of a multiple of 16 up to 512.
    """
    _, tokens, heads, width = query.shape
    return first_refusal(
        (
            facts.family in ("A2", "A3"),
            f"device family {facts.family}, {_NAME} is documented for A2, A3",
        ),
        (
            query.dtype in _DTYPES and bias.dtype == query.dtype,
            f"queries of {query.dtype} with a bias of {bias.dtype}, {_NAME} takes one of "
            "torch.bfloat16, torch.float16 for both",
        ),
        (query.numel() > 0, f"no queries, {_NAME} needs some"),
        (bias.shape[0] == 1, f"{bias.shape[0]} biases, the call gives one for all"),
        (
            tokens == key.shape[1] and tokens > 1,
            f"{tokens} queries with {key.shape[1]} keys, the call has as many of both, and several",
        ),
        (
            math.frexp(scale)[0] == 0.5,
            f"scale={scale}, queries are multiplied by powers of two alone",
        ),
        (heads <= _MOST_HEADS, f"{heads} heads, {_NAME} takes {_MOST_HEADS}"),
        (
            width <= _WIDEST and width % 16 == 0,
            f"heads of {width}, {_NAME} takes multiples of 16 up to {_WIDEST}",
        ),
        (
            heads * width <= _MOST_VALUES,
            f"{heads * width} values of a token, {_NAME} takes {_MOST_VALUES}",
        ),
        (
            all(x.is_contiguous() for x in (query, key, value, bias)),
            f"queries, keys, values or a bias with gaps, {_NAME} needs them contiguous",
        ),
    )


def supports_relative_attention_triton(
    facts: DeviceFacts,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    scale: float,
) -> Support:
    """Heads of up to 512 values without gaps inside."""
    return first_refusal(
        (
            query.dtype in FLOATS and bias.dtype in FLOATS,
            f"queries of {query.dtype} with a bias of {bias.dtype}, the kernel takes float32, "
            "bfloat16, float16",
        ),
        (
            query.shape[3] <= _WIDEST,
            f"heads of {query.shape[3]} values, a tile of 16 of them is cut for {_WIDEST}",
        ),
        (
            query.stride(3) == key.stride(3) == value.stride(3) == 1,
            "heads with gaps inside, the kernel reads stride 1",
        ),
    )
