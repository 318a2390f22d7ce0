"""Lightning attention: linear attention whose state decays by a constant of each head.

Every head keeps the state ``S [D, E]`` of its request. A token multiplies it by ``exp(-slope)``,
adds ``k v^T`` and reads ``q S``. Many tokens go through it in chunks, a few one after the other.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_at_least, require_dtype, require_shape
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.lightning_attention import per_request, reference

_cpu = CpuKernels("ascend_attention.ops.lightning_attention.cpu")

__all__ = ["lightning_attention", "lightning_decode", "slopes_of"]


def slopes_of(heads: int, layer: int, layers: int) -> torch.Tensor:
    """Decay of each head of a layer: those of ALiBi, smaller from layer to layer.

    Args:
        heads: of the whole model; no power of two is needed.
        layer: number of the layer, from 0.
        layers: in the model.

    Returns:
        ``[heads]`` float32.

    Raises:
        InvalidInputError: no heads, or a layer that the model does not have.

    Source: MiniMax-01 (MiniMax, 2025), section 2.2.2; ALiBi (Press et al., 2022) for the slopes
    of heads whose number is no power of two.
    """
    require_at_least("heads", heads, 1)
    if not 0 <= layer < layers:
        raise InvalidInputError(
            f"layer={layer}", f"the model has layers 0 to {layers - 1}", "Correct the number."
        )
    whole = 1 << (heads.bit_length() - 1)
    slopes = _powers(whole)
    if whole < heads:
        slopes += _powers(2 * whole)[0::2][: heads - whole]
    factor = 1.0 if layers == 1 else 1 - layer / (layers - 1)
    return torch.tensor(slopes, dtype=torch.float32) * (factor + 1e-5)


def _powers(heads: int) -> list[float]:
    return [2.0 ** (-8.0 * (head + 1) / heads) for head in range(heads)]


def lightning_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    query_start: torch.Tensor,
    *,
    states: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    has_state: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of a ragged batch, chunk by chunk.

    Within a chunk products of queries and keys are weighted by ``exp(-slope * (i - j))``; what
    came before is in the state at the chunk's beginning.

    Args:
        query: ``[T, H, D]`` float32, bfloat16 or float16, scaled by whoever projects it; ``T`` may
            be 0. Tokens behind the last request are padding.
        key: ``[T, H, D]`` of the same dtype.
        value: ``[T, H, E]`` of the same dtype.
        slopes: ``[H]`` float32, at least 0.
        query_start: ``[R + 1]`` int32 or int64, where the tokens of each request begin, then where
            those of the last end; a request may have none.
        states: ``[S, H, D, E]`` of any float dtype by slot; written. Left out, every request begins
            with zeros and nothing is kept.
        slots: ``[R]`` int32 or int64, all different; below 1 there is no request: its results are
            zeros, and no state is read or written.
        has_state: ``[R]`` bool, whether a request has a state; left out, all have.

    Returns:
        ``[T, H, E]`` in the dtype of ``query``; zeros for padding. States are float32 within a
        step, and rounded to their dtype where they are written.

    Raises:
        InvalidInputError: another shape or dtype, slots without states or the reverse; nothing
            was written then.

    Source: Lightning Attention-2 (Qin et al., 2024), algorithm 1.
    """
    _check(query, key, value, slopes, query_start)
    if (states is None) != (slots is None) or (states is None and has_state is not None):
        raise InvalidInputError(
            f"states {'left out' if states is None else 'given'}, slots "
            f"{'left out' if slots is None else 'given'}",
            "slots say which states are used, has_state which of them hold something",
            "Pass both or none.",
        )
    requests = query_start.shape[0] - 1
    if states is not None and slots is not None:
        _check_states(states, query, value)
        require_shape("slots", slots, requests)
        require_dtype("slots", slots, INDICES)
        if has_state is not None:
            require_shape("has_state", has_state, requests)
            require_dtype("has_state", has_state, (torch.bool,))
    result: torch.Tensor = _LIGHTNING_ATTENTION(
        query, key, value, slopes, query_start, states, slots, has_state
    )
    return result


def lightning_decode(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    query_start: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of a few tokens of each request, one after the other.

    Token ``j`` of a request leaves its state in slot ``slots[r, j]``, so that drafts can be
    rejected: the next step begins with the slot of the last one that counts.

    Args:
        query: ``[T, H, D]``, as in :func:`lightning_attention`.
        key: ``[T, H, D]``.
        value: ``[T, H, E]``.
        slopes: ``[H]`` float32.
        query_start: ``[R + 1]`` int32 or int64; no request has more than ``N`` tokens.
        states: ``[S, H, D, E]`` of any float dtype by slot; written.
        slots: ``[R, N]`` int32 or int64, slots of each request, all different; below 1 there is
            none: where the first one is, results are zeros and nothing is read or written, and
            where another is, the state behind that token is not kept.
        accepted: ``[R]`` int32 or int64, from 1 to ``N``: how many tokens of the step before
            count, which says in which slot a request's state is. Left out, it is the first.

    Returns:
        ``[T, H, E]`` in the dtype of ``query``; zeros for padding.

    Raises:
        InvalidInputError: another shape or dtype; nothing was written then.
    """
    _check(query, key, value, slopes, query_start)
    _check_states(states, query, value)
    requests = query_start.shape[0] - 1
    require_dtype("slots", slots, INDICES)
    require_shape("slots", slots, requests, None)
    require_at_least("columns of slots", slots.shape[1], 1)
    if accepted is not None:
        require_dtype("accepted", accepted, INDICES)
        require_shape("accepted", accepted, requests)
    result: torch.Tensor = _LIGHTNING_DECODE(
        query, key, value, slopes, query_start, states, slots, accepted
    )
    return result


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    query_start: torch.Tensor,
) -> None:
    require_dtype("query", query, FLOATS)
    require_shape("query", query, None, None, None)
    tokens, heads, width = query.shape
    for name, tensor, size in (("key", key, width), ("value", value, None)):
        require_dtype(name, tensor, (query.dtype,))
        require_shape(name, tensor, tokens, heads, size)
    require_dtype("slopes", slopes, (torch.float32,))
    require_shape("slopes", slopes, heads)
    require_dtype("query_start", query_start, INDICES)
    require_shape("query_start", query_start, None)
    require_at_least("length of query_start", query_start.shape[0], 1)


def _check_states(states: torch.Tensor, query: torch.Tensor, value: torch.Tensor) -> None:
    require_dtype("states", states, FLOATS)
    require_shape("states", states, None, query.shape[1], query.shape[2], value.shape[2])


def _decode_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    query_start: torch.Tensor,
    states: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor | None,
) -> torch.Tensor:
    kernels = _cpu.usable(query, key, value, states)
    run = reference.lightning_decode
    if kernels is not None and kernels.supports(query, key, value, states):
        run = kernels.lightning_decode
    return run(query, key, value, slopes, query_start, states, slots, accepted)


def _fake(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: object) -> object:
    return torch.empty(value.shape, dtype=value.dtype, device=value.device)


_LIGHTNING_ATTENTION = declare(
    __name__,
    "lightning_attention(Tensor query, Tensor key, Tensor value, Tensor slopes, "
    "Tensor query_start, Tensor(a!)? states, Tensor? slots, Tensor? has_state) -> Tensor",
    npu=("triton", "torch"),
    fake=_fake,
    cpu=per_request.lightning_attention,
)

_LIGHTNING_DECODE = declare(
    __name__,
    "lightning_decode(Tensor query, Tensor key, Tensor value, Tensor slopes, "
    "Tensor query_start, Tensor(a!) states, Tensor slots, Tensor? accepted) -> Tensor",
    npu=("triton", "torch"),
    fake=_fake,
    cpu=_decode_cpu,
)
