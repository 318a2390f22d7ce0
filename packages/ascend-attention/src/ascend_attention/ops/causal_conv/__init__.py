"""The short causal convolution in front of a linear attention layer, with the state it carries.

Every channel is convolved for itself over the tokens of its request. What the next step needs are
the last inputs, which lie in a slot of the request's.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_at_least, require_dtype, require_shape
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.causal_conv import reference

_cpu = CpuKernels("ascend_attention.ops.causal_conv.cpu")

__all__ = ["ACTIVATIONS", "causal_conv1d"]

ACTIVATIONS = (None, "silu", "swish")
"""What can be applied to the sums; swish is another name of silu."""


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    query_start: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    states: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    has_state: torch.Tensor | None = None,
    accepted: torch.Tensor | None = None,
    most_tokens: int | None = None,
    activation: str | None = "silu",
) -> torch.Tensor:
    """Depthwise causal convolution over a ragged batch; prefill, decode and drafts alike.

    With ``z`` the inputs of a request behind the ``W - 1`` rows of its history,
    ``y[i] = act(bias + sum_j weight[j] * z[i + j])``. The history is zeros, or lies in the
    request's slot from row ``accepted - 1`` on (row 0 where ``accepted`` is left out). Afterwards
    the slot holds the last ``W - 1`` rows of ``z``; with ``accepted`` it holds all rows of ``z``
    but the first, so that the next step can start behind any number of them: if it accepts ``a``
    of this step's tokens, its history starts at row ``a - 1``.

    Args:
        x: ``[T, C]`` float32, bfloat16 or float16, the tokens of all requests one after the other;
            ``T`` may be 0. Tokens behind the last request are padding.
        weight: ``[W, C]`` of any float dtype, ``W`` at least 2; the last row is multiplied with
            the token itself. Checkpoints have ``[C, 1, W]``.
        query_start: ``[R + 1]`` int32 or int64, where the tokens of each request begin, then where
            those of the last end; a request may have none.
        bias: ``[C]`` of any float dtype.
        states: ``[S, L, C]`` of any float dtype, last inputs by slot, ``L`` at least ``W - 1``;
            written. Left out, every request begins with zeros and nothing is kept.
        slots: ``[R]`` int32 or int64, the slot of every request, all different. Below 1 there is
            no request: its results are zeros, and no state is read or written.
        has_state: ``[R]`` bool, whether a request has a history; left out, all have.
        accepted: ``[R]`` int32 or int64, at least 1: how many tokens of the step before count.
            A request then has at most ``L - W + 2`` tokens.
        most_tokens: a bound that the host knows for the tokens of a request; ``T`` by default.
        activation: one of :data:`ACTIVATIONS`.

    Returns:
        ``[T, C]`` in ``x.dtype``, contiguous; zeros for padding. Sums run in float32.

    Raises:
        InvalidInputError: another shape or dtype, slots or counts without states, more tokens than
            a slot has rows for, another activation; nothing was written then.

    Source: Mamba (Gu and Dao, 2023), section 3.4; vLLM's ``mamba/ops/causal_conv1d.py`` for the
    order of rows while drafts are verified.
    """
    require_dtype("x", x, FLOATS)
    require_shape("x", x, None, None)
    channels = x.shape[1]
    require_dtype("weight", weight, FLOATS)
    require_shape("weight", weight, None, channels)
    require_at_least("rows of weight", weight.shape[0], 2)
    require_dtype("query_start", query_start, INDICES)
    require_shape("query_start", query_start, None)
    require_at_least("length of query_start", query_start.shape[0], 1)
    if bias is not None:
        require_dtype("bias", bias, FLOATS)
        require_shape("bias", bias, channels)
    if activation not in ACTIVATIONS:
        raise InvalidInputError(
            f"activation={activation!r}", "known are None, silu, swish", "Use one of them."
        )
    most = x.shape[0] if most_tokens is None else most_tokens
    require_at_least("most_tokens", most, 0)
    requests = query_start.shape[0] - 1
    _check_states(states, weight, requests, slots, has_state, accepted, most)
    result: torch.Tensor = _CAUSAL_CONV1D(
        x,
        weight,
        query_start,
        bias,
        states,
        slots,
        has_state,
        accepted,
        most,
        activation is not None,
    )
    return result


def _check_states(
    states: torch.Tensor | None,
    weight: torch.Tensor,
    requests: int,
    slots: torch.Tensor | None,
    has_state: torch.Tensor | None,
    accepted: torch.Tensor | None,
    most: int,
) -> None:
    given = {"slots": slots, "has_state": has_state, "accepted": accepted}
    if states is None:
        for name, value in given.items():
            if value is not None:
                raise InvalidInputError(
                    f"{name} without states", "it says which states are used", "Pass states."
                )
        return
    width, channels = weight.shape
    require_dtype("states", states, FLOATS)
    require_shape("states", states, None, None, channels)
    require_at_least("rows of a state", states.shape[1], width - 1)
    if slots is None:
        raise InvalidInputError(
            "states without slots", "slots say which state a request has", "Pass slots."
        )
    for name, value in given.items():
        if value is not None:
            require_shape(name, value, requests)
            require_dtype(name, value, (torch.bool,) if name == "has_state" else INDICES)
    if accepted is not None and most > states.shape[1] - width + 2:
        raise InvalidInputError(
            f"most_tokens={most} with accepted",
            f"states of {states.shape[1]} rows hold {states.shape[1] - width + 2} tokens of a step "
            f"and the {width - 2} before",
            "Pass the bound as most_tokens, or states with more rows.",
        )


def _conv_cpu(
    x: torch.Tensor,
    weight: torch.Tensor,
    query_start: torch.Tensor,
    bias: torch.Tensor | None,
    states: torch.Tensor | None,
    slots: torch.Tensor | None,
    has_state: torch.Tensor | None,
    accepted: torch.Tensor | None,
    most_tokens: int,
    silu: bool,
) -> torch.Tensor:
    kernels = _cpu.usable(x, weight, bias, states)
    run = reference.causal_conv1d
    if kernels is not None and kernels.supports(x, states):
        run = kernels.causal_conv1d
    return run(x, weight, query_start, bias, states, slots, has_state, accepted, most_tokens, silu)


_CAUSAL_CONV1D = declare(
    __name__,
    "causal_conv1d(Tensor x, Tensor weight, Tensor query_start, Tensor? bias, "
    "Tensor(a!)? states, Tensor? slots, Tensor? has_state, Tensor? accepted, int most_tokens, "
    "bool silu) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda x, *rest: torch.empty(x.shape, dtype=x.dtype, device=x.device),
    cpu=_conv_cpu,
)
