"""Multi-head latent attention from queries to values, over paged latents.

The same numbers come of two orders of products. *Expanded*, ``kv_b_proj`` makes keys and values of
every head from the latents, which pays for itself when many tokens of a request attend at once.
*Absorbed*, it is multiplied into queries and results instead, and attention itself runs on latents
(:mod:`ascend_attention.ops.mla_attention`), which suits decode.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.mla_forward import on_cpu
from ascend_attention.ops.paged_attention.runs import require_lengths

__all__ = ["mla_forward"]


def mla_forward(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    kv_b: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
    *,
    query_ends: Sequence[int] = (),
    seq_lens: Sequence[int] = (),
) -> torch.Tensor:
    """Attend to all tokens of a token's request up to itself.

    With ``k_i = (kv_b[:, :N] latent_i, rope_i)`` and ``v_i = kv_b[:, N:] latent_i``, for every head
    of a token at position ``p``: ``sum_{i <= p} softmax_i(scale * q . k_i) v_i`` (DeepSeek-V2,
    section 2.1.2).

    Args:
        q_nope: ``[T, H, N]``, float32, bfloat16 or float16; ``T`` may be 0.
        q_rope: ``[T, H, R]`` rotated, of the same dtype.
        latents: ``[B, P, L]`` paged latents, any strides.
        ropes: ``[B, P, R]`` paged rotated keys, any strides.
        kv_b: ``[H, N + V, L]`` in the query's dtype, a head's rows for keys before those for
            values.
        block_table: ``[N, nb]`` int32 or int64, blocks of every request in order.
        request: ``[T]`` int32 or int64, the request of every token.
        position: ``[T]`` int32 or int64, the token's index within its request, whose rows lie in
            the block table; negative for padding. Tokens of one request stand in order.
        scale: factor on the dot products.
        query_ends: see :func:`ascend_attention.ops.mla_attention.mla_attention`.
        seq_lens: the same.

    Returns:
        ``[T, H, V]`` in the query's dtype, accumulated in float32; zeros for padding.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other.
    """
    require_dtype("q_nope", q_nope, FLOATS)
    require_shape("q_nope", q_nope, None, None, None)
    tokens, heads, nope = q_nope.shape
    require_dtype("q_rope", q_rope, (q_nope.dtype,))
    require_shape("q_rope", q_rope, tokens, heads, None)
    require_shape("kv_b", kv_b, heads, None, None)
    require_dtype("kv_b", kv_b, (q_nope.dtype,))
    require_shape("latents", latents, None, None, kv_b.shape[2])
    require_shape("ropes", ropes, *latents.shape[:2], q_rope.shape[2])
    require_dtype("ropes", ropes, (latents.dtype,))
    require_shape("block_table", block_table, None, None)
    for name, index in (("request", request), ("position", position)):
        require_shape(name, index, tokens)
        require_dtype(name, index, INDICES)
    require_dtype("block_table", block_table, INDICES)
    require_lengths(block_table, query_ends, seq_lens)
    if kv_b.shape[1] <= nope:
        raise InvalidInputError(
            f"kv_b with {kv_b.shape[1]} rows for a head",
            f"queries have {nope} plain channels, and values follow",
            "Pass rows for keys and then rows for values.",
        )
    result: torch.Tensor = _MLA_FORWARD(
        q_nope, q_rope, latents, ropes, kv_b, block_table, request, position, scale,
        tuple(query_ends), tuple(seq_lens),
    )  # fmt: skip
    return result


def _fake(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    kv_b: torch.Tensor,
    *rest: object,
) -> torch.Tensor:
    tokens, heads, nope = q_nope.shape
    return q_nope.new_empty((tokens, heads, kv_b.shape[1] - nope))


_MLA_FORWARD = declare(
    __name__,
    "mla_forward(Tensor q_nope, Tensor q_rope, Tensor latents, Tensor ropes, Tensor kv_b, "
    "Tensor block_table, Tensor request, Tensor position, float scale, int[] query_ends, "
    "int[] seq_lens) -> Tensor",
    npu=("torch_npu", "triton", "torch"),
    fake=_fake,
    cpu=on_cpu.mla_forward,
)
