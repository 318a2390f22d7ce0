"""The gated delta rule: linear attention with a state that forgets and corrects itself.

Gated DeltaNet decays a head's state by one factor a token, Kimi Delta Attention by one factor for
every key channel; everything else is the same, and so are the operators.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, require_at_least, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.gated_delta_rule import on_cpu
from ascend_attention.ops.gated_delta_rule.layout import CHUNK, chunk_table

__all__ = ["CHUNK", "chunk_gated_delta_rule", "chunk_table", "recurrent_gated_delta_rule"]


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
    normalize: bool = False,
) -> torch.Tensor:
    """Run the gated delta rule token by token, for decode with or without drafts.

    For each token of a request, in order, and each value head ``h``, which shares key head
    ``h // (H / G)``::

        S = S * exp(decay)                       decay of the state [V, K], per head or channel
        S = S + beta * (value - S key) key^T     correction of what the state says about the key
        out = S (scale * query)

    Args:
        query: ``[T, G, K]``, float32, bfloat16 or float16; ``T`` may be 0.
        key: ``[T, G, K]`` of the same dtype.
        value: ``[T, H, V]`` of the same dtype; ``H`` is a multiple of ``G``.
        decay: ``[T, H]`` (Gated DeltaNet) or ``[T, H, K]`` (Kimi Delta Attention) float32, natural
            logarithms of the factors, at most 0.
        beta: ``[T, H]`` of any float dtype, between 0 and 1, so behind the sigmoid.
        state: ``[S, H, V, K]`` float32, bfloat16 or float16, slots of states, written in place;
            any strides between slots, no gaps inside one. No two requests name the same slot.
        cu_seqlens: ``[R + 1]`` int32, where the tokens of each request begin and end, from 0.
            Requests may have no token. Tokens behind the last request are padding.
        state_indices: ``[R, W]`` int32 slots of each request. Token ``j`` of a request leaves its
            state in ``state_indices[r, min(j, W - 1)]``, so with ``W = 1`` the last token's
            remains. Slot 0, like a negative one, is no slot: nothing is written there.
        accepted: ``[R]`` int32, from 1 to ``W``: a request starts from the state in
            ``state_indices[r, accepted[r] - 1]``, which the last accepted token of the step before
            has left. None starts from ``state_indices[r, 0]``. A request that starts from no slot
            writes nothing.
        scale: factor on the queries.
        normalize: divide queries and keys by ``sqrt(sum of squares + 1e-6)`` first.

    Returns:
        ``[T, H, V]`` in the value's dtype. Everything is computed in float32, and a state is
        rounded to its dtype when it is written. Padding and requests without a slot give zeros.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other.
        IndexError: on a CPU, a slot or a number of accepted tokens that does not exist.

    Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024), equation 10, and the Kimi
    Linear report (2025), equation 1, for decays of channels. Layout of states and slots are those
    of vLLM's ``third_party/flash_linear_attention/ops/fused_recurrent.py``.
    """
    _check(query, key, value, decay, beta, state, cu_seqlens)
    requests = cu_seqlens.shape[0] - 1
    require_dtype("state_indices", state_indices, (torch.int32,))
    require_shape("state_indices", state_indices, requests, None)
    require_at_least("slots of a request", state_indices.shape[1], 1)
    if accepted is not None:
        require_dtype("accepted", accepted, (torch.int32,))
        require_shape("accepted", accepted, requests)
    result: torch.Tensor = _RECURRENT(
        query, key, value, decay, beta, state, cu_seqlens, state_indices, accepted, scale, normalize
    )
    return result


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
    normalize: bool = False,
    chunks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run the gated delta rule as matrix products over chunks of 64 tokens, for prompts.

    The same function as :func:`recurrent_gated_delta_rule`, up to rounding: a prompt may be cut
    into steps anywhere, and decode may go on from the states that it leaves.

    Args:
        query: ``[T, G, K]``, float32, bfloat16 or float16; ``T`` may be 0.
        key: ``[T, G, K]`` of the same dtype.
        value: ``[T, H, V]`` of the same dtype; ``H`` is a multiple of ``G``.
        decay: ``[T, H]`` or ``[T, H, K]`` float32, natural logarithms of the factors, at most 0.
        beta: ``[T, H]`` of any float dtype, between 0 and 1, so behind the sigmoid.
        state: ``[S, H, V, K]`` float32, bfloat16 or float16, slots of states, written in place;
            any strides between slots, no gaps inside one. No two requests name the same slot.
        cu_seqlens: ``[R + 1]`` int32, where the tokens of each request begin and end, from 0.
            Requests may have no token, and then keep their state. Tokens behind the last request
            are padding.
        state_indices: ``[R]`` int32, the slot of each request, which is read before its first and
            written behind its last token. Slot 0, like a negative one, is no slot: such a request
            gives zeros and writes nothing.
        has_state: ``[R]`` bool, whether the slot holds the state of earlier tokens; without, a
            request begins with zeros, whatever the slot holds.
        scale: factor on the queries.
        normalize: divide queries and keys by ``sqrt(sum of squares + 1e-6)`` first.
        chunks: what :func:`chunk_table` gives for ``cu_seqlens`` and ``T``, so that the layers of a
            step share it; None makes it here. Not used on a CPU.

    Returns:
        ``[T, H, V]`` in the value's dtype; computed in float32, but for operands of products on an
        NPU, which are rounded to the dtype of the queries. States stay in float32 between chunks.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other.
        IndexError: on a CPU, a slot that does not exist.

    Source: the chunk form of Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024), section
    3.3, and of the Kimi Linear report (2025), section 3.
    """
    _check(query, key, value, decay, beta, state, cu_seqlens)
    requests = cu_seqlens.shape[0] - 1
    require_dtype("state_indices", state_indices, (torch.int32,))
    require_shape("state_indices", state_indices, requests)
    require_dtype("has_state", has_state, (torch.bool,))
    require_shape("has_state", has_state, requests)
    if chunks is not None:
        require_dtype("chunks", chunks, (torch.int32,))
        require_shape("chunks", chunks, query.shape[0] // CHUNK + requests, 2)
    result: torch.Tensor = _CHUNK(
        query, key, value, decay, beta, state, cu_seqlens, state_indices, has_state, scale,
        normalize, chunks,
    )  # fmt: skip
    return result


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    cu_seqlens: torch.Tensor,
) -> None:
    require_dtype("query", query, FLOATS)
    require_shape("query", query, None, None, None)
    tokens, groups, width = query.shape
    require_shape("key", key, tokens, groups, width)
    require_shape("value", value, tokens, None, None)
    for name, other in (("key", key), ("value", value)):
        require_dtype(name, other, (query.dtype,))
    heads, height = value.shape[1:]
    require_at_least("key heads", groups, 1)
    if heads % groups:
        raise InvalidInputError(
            f"{heads} value heads with {groups} key heads",
            "every key head serves as many value heads",
            "Check the number of heads of this rank.",
        )
    require_dtype("decay", decay, (torch.float32,))
    if decay.dim() == 2:
        require_shape("decay", decay, tokens, heads)
    else:
        require_shape("decay", decay, tokens, heads, width)
    require_dtype("beta", beta, FLOATS)
    require_shape("beta", beta, tokens, heads)
    require_dtype("state", state, FLOATS)
    require_shape("state", state, None, heads, height, width)
    if state.numel() and not state[0].is_contiguous():
        raise InvalidInputError(
            f"state with strides {state.stride()}",
            "a slot has no gaps inside",
            "Only the first axis may have any stride.",
        )
    require_dtype("cu_seqlens", cu_seqlens, (torch.int32,))
    require_shape("cu_seqlens", cu_seqlens, None)
    require_at_least("length of cu_seqlens", cu_seqlens.shape[0], 1)


def _fake(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: object
) -> torch.Tensor:
    return value.new_empty(value.shape)


_SHARED = "Tensor query, Tensor key, Tensor value, Tensor decay, Tensor beta, Tensor(a!) state, "
_RECURRENT = declare(
    __name__,
    f"recurrent_gated_delta_rule({_SHARED}Tensor cu_seqlens, Tensor state_indices, "
    "Tensor? accepted, float scale, bool normalize) -> Tensor",
    npu=("triton",),
    fake=_fake,
    cpu=on_cpu.recurrent_gated_delta_rule,
)
_CHUNK = declare(
    __name__,
    f"chunk_gated_delta_rule({_SHARED}Tensor cu_seqlens, Tensor state_indices, Tensor has_state, "
    "float scale, bool normalize, Tensor? chunks) -> Tensor",
    npu=("torch_npu", "triton"),
    fake=_fake,
    cpu=on_cpu.chunk_gated_delta_rule,
)
