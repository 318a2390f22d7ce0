"""Definition of the gated delta rule: one token after the other, in torch."""

from __future__ import annotations

import torch

from ascend_attention.ops.gated_delta_rule.layout import spans

EPSILON = 1e-6


def recurrent_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    cu_seqlens: torch.Tensor,
    state_indices: torch.Tensor,
    accepted: torch.Tensor | None,
    scale: float,
    normalize: bool,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.gated_delta_rule.recurrent_gated_delta_rule`."""
    requests = spans(cu_seqlens, value.shape[0], state_indices, state.shape[0])
    columns = [0] * len(requests) if accepted is None else (accepted - 1).tolist()
    if any(not 0 <= column < state_indices.shape[1] for column in columns):
        raise IndexError(
            f"accepted tokens {[column + 1 for column in columns]} with {state_indices.shape[1]} "
            "slots a request"
        )
    out = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    for (first, last), slots, column in zip(requests, state_indices.tolist(), columns, strict=True):
        if slots[column] <= 0:
            continue
        held = widened(state[slots[column]])
        for t in range(first, last):
            held, out[t] = step(query[t], key[t], value[t], decay[t], beta[t], held, scale,
                                normalize)  # fmt: skip
            slot = slots[min(t - first, len(slots) - 1)]
            if slot > 0:
                state[slot] = held
    return out


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
    """See :func:`ascend_attention.ops.gated_delta_rule.chunk_gated_delta_rule`."""
    requests = spans(cu_seqlens, value.shape[0], state_indices, state.shape[0])
    out = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    for (first, last), slot, keeps in zip(
        requests, state_indices.tolist(), has_state.tolist(), strict=True
    ):
        if slot <= 0 or first == last:
            continue
        held = widened(state[slot])
        held = held if keeps else torch.zeros_like(held)
        for t in range(first, last):
            held, out[t] = step(query[t], key[t], value[t], decay[t], beta[t], held, scale,
                                normalize)  # fmt: skip
        state[slot] = held
    return out


def step(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    scale: float,
    normalize: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token: the state behind it, and its output.

    Args:
        query: ``[G, K]``.
        key: ``[G, K]``.
        value: ``[H, V]``.
        decay: ``[H]`` or ``[H, K]``.
        beta: ``[H]``.
        state: ``[H, V, K]`` in the dtype that is computed in.
        scale: factor on the queries.
        normalize: divide queries and keys by their lengths.

    Returns:
        ``[H, V, K]`` and ``[H, V]``, in the state's dtype.
    """
    heads = value.shape[0]
    query, key = (prepared(x, heads, normalize) for x in (query, key))
    factors = widened(decay).exp()
    state = state * (factors[:, None, None] if decay.dim() == 1 else factors[:, None, :])
    predicted = (state * key[:, None, :]).sum(-1)
    change = widened(beta)[:, None] * (widened(value) - predicted)
    state = state + change[:, :, None] * key[:, None, :]
    return state, (state * (query * scale)[:, None, :]).sum(-1)


def prepared(x: torch.Tensor, heads: int, normalize: bool) -> torch.Tensor:
    """Queries or keys ``[..., G, K]`` widened, normalised if asked for, one for every head."""
    x = widened(x)
    if normalize:
        x = x / (x.square().sum(-1, keepdim=True) + EPSILON).sqrt()
    return x.repeat_interleave(heads // x.shape[-2], dim=-2)


def widened(x: torch.Tensor) -> torch.Tensor:
    """In float32, or float64 if it is that already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
