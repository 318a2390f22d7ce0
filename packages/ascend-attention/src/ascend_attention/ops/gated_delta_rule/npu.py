"""Calls of torch_npu for the gated delta rule, and the limits of what an NPU can run.

torch_npu takes states of bfloat16 alone, so the usual ones of float32 run in Triton. Its
``npu_recurrent_gated_delta_rule`` is not called: at most 8 tokens of a request are a limit that no
shape tells, and it is not documented what becomes of the requests that name no slot. Not run on
hardware.
"""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

_WIDEST_KEY = 128
_WIDEST_VALUE = 256
_NPU_WIDTH = 128
_NPU_HEADS = 64
_EPSILON = 1e-6


def chunk_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state_indices: torch.Tensor,
    has_state: torch.Tensor,
    scale: float,
    normalize: bool,
    chunks: torch.Tensor | None,
) -> torch.Tensor:
    """By ``npu_chunk_gated_delta_rule``, with the states of the requests gathered before.

    Normalised queries and keys are rounded to bfloat16.
    """
    if normalize:
        query, key = (_normalized(x) for x in (query, key))
    lengths = cu_seqlens.diff()
    slots = state_indices.clamp(min=0).long()
    held = state[slots]
    keeps = (has_state & (slots > 0)).view(-1, 1, 1, 1)
    out, final = torch.ops.npu.npu_chunk_gated_delta_rule(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        beta=beta.contiguous(),
        initial_state=torch.where(keeps, held, 0.0),
        actual_seq_lengths=lengths,
        scale=scale,
        g=decay.contiguous(),
    )
    # Requests without tokens keep their state, and those without a slot keep what lies in slot 0.
    written = ((slots > 0) & (lengths > 0)).view(-1, 1, 1, 1)
    state[slots] = torch.where(written, final, held)
    token = torch.arange(value.shape[0], device=value.device, dtype=torch.int32)
    owner = torch.searchsorted(cu_seqlens[1:].contiguous(), token, right=True)
    real = owner < slots.shape[0]
    real = real & (slots[owner.clamp(max=slots.shape[0] - 1)] > 0)
    result: torch.Tensor = torch.where(real.view(-1, 1, 1), out, 0.0)
    return result


def _normalized(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    lengths = (wide.square().sum(-1, keepdim=True) + _EPSILON).sqrt()
    return (wide / lengths).to(x.dtype)


def supports_chunk_gated_delta_rule(
    facts: DeviceFacts,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    *rest: Any,
) -> Support:
    """A2 and A3; bfloat16 throughout, one decay a head; at most 64 heads of 128 channels.

    Its documentation also limits sequences to 8 tokens, and shows one of 100.
    """
    tensors = {"queries": query, "betas": beta, "states": state}
    return first_refusal(
        (facts.family in ("A2", "A3"), f"{facts.family}, the operator exists on A2 and A3"),
        *(
            (x.dtype == torch.bfloat16, f"{name} of {x.dtype}, the operator takes bfloat16")
            for name, x in tensors.items()
        ),
        (decay.dim() == 2, "a decay for every channel, the operator takes one a head"),
        *(
            (x.shape[2] == _NPU_WIDTH, f"{name} of width {x.shape[2]}, the operator takes 128")
            for name, x in (("keys", key), ("values", value))
        ),
        (
            max(key.shape[1], value.shape[1]) <= _NPU_HEADS,
            f"{value.shape[1]} heads, the operator takes {_NPU_HEADS}",
        ),
        (
            value.numel() > 0 and cu_seqlens.shape[0] > 1,
            "no token or no request, the operator takes some",
        ),
    )


def supports_recurrent_gated_delta_rule_triton(
    facts: DeviceFacts,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    *rest: Any,
) -> Support:
    """Keys of at most 128 and values of at most 256 channels."""
    return _triton(query, value, state)


def supports_chunk_gated_delta_rule_triton(
    facts: DeviceFacts,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    *rest: Any,
) -> Support:
    """Keys of at most 128 and values of at most 256 channels."""
    return _triton(query, value, state)


def _triton(query: torch.Tensor, value: torch.Tensor, state: torch.Tensor) -> Support:
    return first_refusal(
        (query.dtype in FLOATS, f"queries of {query.dtype}, the kernels take float"),
        (state.dtype in FLOATS, f"states of {state.dtype}, the kernels take float"),
        (
            query.shape[2] <= _WIDEST_KEY,
            f"keys of width {query.shape[2]}, the kernels take {_WIDEST_KEY}",
        ),
        (
            value.shape[2] <= _WIDEST_VALUE,
            f"values of width {value.shape[2]}, the kernels take {_WIDEST_VALUE}",
        ),
    )
