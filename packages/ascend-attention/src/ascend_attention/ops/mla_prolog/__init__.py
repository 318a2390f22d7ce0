"""Everything in front of latent attention in one operator: projections, norms, rotation, the cache.

It gives what :mod:`ascend_attention.layers.mla` makes step by step, with queries that are absorbed
already, and with rotated pairs half-split, in queries and in the cache. Shapes: T tokens, H hidden
size, Q and L widths of the latents of queries and of keys, h heads, N and R widths of a head's
plain and rotated part.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare
from ascend_ops_core.selection import Choice

from ascend_attention.ops.paged_rows import RowIndex

__all__ = ["Prologue", "PrologueWeights", "mla_prolog", "prolog_choice"]


class PrologueWeights(NamedTuple):
    """Weights of :func:`mla_prolog`, of one dtype, inputs before outputs.

    On an NPU ``down_q``, ``up_q`` and ``down_kv`` lie in FRACTAL_NZ, which is not visible here.

    Attributes:
        down_q: ``[H, Q]``.
        up_q: ``[Q, h * (N + R)]``, the plain part of a head before its rotated one.
        up_k: ``[h, N, L]``.
        down_kv: ``[H, L + R]``.
        q_norm: ``[Q]``.
        kv_norm: ``[L]``.
    """

    down_q: torch.Tensor
    up_q: torch.Tensor
    up_k: torch.Tensor
    down_kv: torch.Tensor
    q_norm: torch.Tensor
    kv_norm: torch.Tensor


class Prologue(NamedTuple):
    """What attention and an indexer read.

    Attributes:
        q_latent: ``[T, h, L]``.
        q_rope: ``[T, h, R]``, pairs ``(i, i + R / 2)``.
        q_input: ``[T, Q]``, the normed latent of queries.
    """

    q_latent: torch.Tensor
    q_rope: torch.Tensor
    q_input: torch.Tensor


def mla_prolog(
    hidden: torch.Tensor,
    weights: PrologueWeights,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    index: RowIndex,
) -> Prologue:
    """Project, norm, rotate and absorb a step's tokens, and write their rows of the cache.

    Weights have interleaved pairs, ``(0, 1), (2, 3), ...``; rotated ones are half-split.

    Args:
        hidden: ``[T, H]``, float32, bfloat16 or float16; ``T`` may be 0.
        weights: of its dtype.
        eps: of both norms.
        cos: ``[T, R / 2]`` float32.
        sin: the same shape and dtype.
        latents: ``[B, P, L]`` paged latents of the same dtype; written.
        ropes: ``[B, P, R]`` paged rotated keys of the same dtype; written.
        index: block and offset of every token, each ``[T]`` int32 or int64, rows that differ from
            each other; negative for padding, which writes nothing.

    Returns:
        All in ``hidden``'s dtype.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other; nothing was written then.
    """
    require_dtype("hidden", hidden, FLOATS)
    require_shape("hidden", hidden, None, None)
    tokens, size = hidden.shape
    for name, weight in weights._asdict().items():
        require_dtype(name, weight, (hidden.dtype,))
    require_shape("up_k", weights.up_k, None, None, None)
    heads, nope, rank = weights.up_k.shape
    require_shape("down_q", weights.down_q, size, None)
    require_shape("down_kv", weights.down_kv, size, None)
    rotary = weights.down_kv.shape[1] - rank
    if rotary < 2 or rotary % 2:
        raise InvalidInputError(
            f"down_kv of {weights.down_kv.shape[1]} columns with latents of {rank}",
            "an even number of rotated values follows the latent",
            "Check kv_lora_rank and qk_rope_head_dim.",
        )
    require_shape("up_q", weights.up_q, weights.down_q.shape[1], heads * (nope + rotary))
    require_shape("q_norm", weights.q_norm, weights.down_q.shape[1])
    require_shape("kv_norm", weights.kv_norm, rank)
    for name, table in (("cos", cos), ("sin", sin)):
        require_shape(name, table, tokens, rotary // 2)
        require_dtype(name, table, (torch.float32,))
    require_shape("latents", latents, None, None, rank)
    require_shape("ropes", ropes, *latents.shape[:2], rotary)
    for name, cache in (("latents", latents), ("ropes", ropes)):
        require_dtype(name, cache, (hidden.dtype,))
    for name, part in (("block", index.block), ("offset", index.offset)):
        require_shape(name, part, tokens)
        require_dtype(name, part, INDICES)
    return Prologue(
        *_MLA_PROLOG(hidden, *weights, eps, cos, sin, latents, ropes, index.block, index.offset)
    )


def prolog_choice(
    facts: DeviceFacts,
    dtype: torch.dtype,
    *,
    hidden: int,
    q_rank: int,
    rank: int,
    heads: int,
    nope: int,
    rotary: int,
    rows: int,
) -> Choice:
    """What would run :func:`mla_prolog` in a layer, before it is built.

    Args:
        facts: the device family.
        dtype: of weights and caches.
        hidden: ``H``.
        q_rank: ``Q``.
        rank: ``L``.
        heads: ``h``.
        nope: ``N``.
        rotary: ``R``.
        rows: of a block of the cache.
    """

    def like(*shape: int, of: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=of, device="meta")

    angles, place = like(1, rotary // 2, of=torch.float32), like(1, of=torch.int64)
    return _MLA_PROLOG.choose(
        facts, like(1, hidden), like(hidden, q_rank), like(q_rank, heads * (nope + rotary)),
        like(heads, nope, rank), like(hidden, rank + rotary), like(q_rank), like(rank), 1e-6,
        angles, angles, like(1, rows, rank), like(1, rows, rotary), place, place,
    )  # fmt: skip


def _fake(
    hidden: torch.Tensor,
    down_q: torch.Tensor,
    up_q: torch.Tensor,
    up_k: torch.Tensor,
    down_kv: torch.Tensor,
    *rest: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    heads, _, rank = up_k.shape
    return (
        hidden.new_empty((hidden.shape[0], heads, rank)),
        hidden.new_empty((hidden.shape[0], heads, down_kv.shape[1] - rank)),
        hidden.new_empty((hidden.shape[0], down_q.shape[1])),
    )


_MLA_PROLOG = declare(
    __name__,
    "mla_prolog(Tensor hidden, Tensor down_q, Tensor up_q, Tensor up_k, Tensor down_kv, "
    "Tensor q_norm, Tensor kv_norm, float eps, Tensor cos, Tensor sin, Tensor(a!) latents, "
    "Tensor(b!) ropes, Tensor block, Tensor offset) -> (Tensor, Tensor, Tensor)",
    npu=("torch_npu", "torch"),
    fake=_fake,
)
