"""Multi-head latent attention over paged latents, in absorbed form (DeepSeek-V2, section 2.1).

Every query head is multiplied into the latent space by its part of ``kv_b_proj``, so that all heads
share one row per token: a normed latent, which is key and value at once, and a rotated part, which
is key alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.registry import declare

from ascend_attention.ops.mla_attention import reference
from ascend_attention.ops.paged_attention.runs import require_lengths

_cpu = CpuKernels("ascend_attention.ops.mla_attention.cpu")

__all__ = ["mla_attention"]


def mla_attention(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
    *,
    query_ends: Sequence[int] = (),
    seq_lens: Sequence[int] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to all tokens of a token's request up to itself.

    For head ``h`` of token ``t`` at position ``p`` of its request:
    ``sum_{i <= p} softmax_i(scale * (q_latent . latent_i + q_rope . rope_i)) latent_i``.

    Args:
        q_latent: ``[T, H, L]``, float32, bfloat16 or float16; ``T`` may be 0.
        q_rope: ``[T, H, R]`` rotated, of the same dtype.
        latents: ``[B, P, L]`` paged latents, any strides.
        ropes: ``[B, P, R]`` paged rotated keys, any strides.
        block_table: ``[N, nb]`` int32 or int64, blocks of every request in order.
        request: ``[T]`` int32 or int64, the request of every token.
        position: ``[T]`` int32 or int64, the token's index within its request, whose rows lie in
            the block table; negative for padding.
        scale: factor on the dot products.
        query_ends: ``[N]``, where the tokens of each request end, which then lie in order of the
            requests, those of one request at its last positions, and padding behind all; empty if
            only the device knows. torch_npu's operator needs it.
        seq_lens: ``[N]``, the tokens of each request in the cache; given together with these.

    Returns:
        ``[T, H, L]`` in the query's dtype, and ``[T, H]`` float32, the natural logarithm of the
        softmax's denominator, with which results over parts of a context are merged. Padding gives
        zeros and ``-inf``, and reads nothing.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other, or lengths of another number
            of requests.
    """
    require_dtype("q_latent", q_latent, FLOATS)
    require_shape("q_latent", q_latent, None, None, None)
    tokens, heads, width = q_latent.shape
    require_dtype("q_rope", q_rope, (q_latent.dtype,))
    require_shape("q_rope", q_rope, tokens, heads, None)
    require_shape("latents", latents, None, None, width)
    require_shape("ropes", ropes, *latents.shape[:2], q_rope.shape[2])
    require_dtype("ropes", ropes, (latents.dtype,))
    require_shape("block_table", block_table, None, None)
    for name, index in (("request", request), ("position", position)):
        require_shape(name, index, tokens)
        require_dtype(name, index, INDICES)
    require_dtype("block_table", block_table, INDICES)
    require_lengths(block_table, query_ends, seq_lens)
    result: tuple[torch.Tensor, torch.Tensor] = _MLA_ATTENTION(
        q_latent, q_rope, latents, ropes, block_table, request, position, scale,
        tuple(query_ends), tuple(seq_lens),
    )  # fmt: skip
    return result


def _mla_attention_cpu(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    scale: float,
    query_ends: Sequence[int],
    seq_lens: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    given = q_latent, q_rope, latents, ropes, block_table, request, position
    kernels = _cpu.usable(*given)
    if kernels is not None and kernels.supports(*given):
        return kernels.mla_attention(*given, scale)
    return reference.mla_attention(*given, scale, query_ends, seq_lens)


def _fake(q_latent: torch.Tensor, *rest: object) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        q_latent.new_empty(q_latent.shape),
        q_latent.new_empty(q_latent.shape[:2], dtype=torch.float32),
    )


_MLA_ATTENTION = declare(
    __name__,
    "mla_attention(Tensor q_latent, Tensor q_rope, Tensor latents, Tensor ropes, "
    "Tensor block_table, Tensor request, Tensor position, float scale, int[] query_ends, "
    "int[] seq_lens) -> (Tensor, Tensor)",
    npu=("torch_npu", "triton", "torch"),
    fake=_fake,
    cpu=_mla_attention_cpu,
)
