"""The chunk form of the gated delta rule in torch's products, for a CPU.

With ``G`` the sums of the decays from the beginning of a chunk to each of its tokens, and for
``i > j``::

    A[i, j] = beta[i] sum_c key[i, c] key[j, c] exp(G[i, c] - G[j, c])
    P[i, j] = scale sum_c query[i, c] key[j, c] exp(G[i, c] - G[j, c])      also for i = j
    (I + A) [U, W] = [beta value, beta key exp(G)]

all chunks are independent up to here. Then, chunk after chunk, with ``g`` the last row of ``G``::

    V = U - W S^T
    out = (scale query exp(G)) S^T + P V
    S = S exp(g) + V^T (key exp(g - G))

No exponent is positive: ``exp(G[i] - G[j])`` is formed from differences, see :func:`_products`.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from ascend_attention.ops.gated_delta_rule.layout import CHUNK
from ascend_attention.ops.gated_delta_rule.reference import prepared, widened

# Chunks whose products are made together, which bounds the memory.
_CHUNKS_TOGETHER = 8
_LEAST_CHUNK = 16


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
    chunks: torch.Tensor | None = None,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.gated_delta_rule.chunk_gated_delta_rule`."""
    out = torch.zeros(value.shape, dtype=value.dtype)
    for (first, last), slot, keeps in zip(
        pairwise(cu_seqlens.tolist()), state_indices.tolist(), has_state.tolist(), strict=True
    ):
        if slot <= 0 or first == last:
            continue
        held = widened(state[slot])
        held = held.clone() if keeps else torch.zeros_like(held)
        step = _CHUNKS_TOGETHER * CHUNK
        for start in range(first, last, step):
            part = slice(start, min(start + step, last))
            out[part] = some_chunks(
                query[part], key[part], value[part], decay[part], beta[part], held, scale, normalize
            )
        state[slot] = held
    return out


def some_chunks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    scale: float,
    normalize: bool,
) -> torch.Tensor:
    """Tokens of one request, from a chunk's first on.

    Args:
        query: ``[T, G, K]``, at least one token.
        key: ``[T, G, K]``.
        value: ``[T, H, V]``.
        decay: ``[T, H]`` or ``[T, H, K]``.
        beta: ``[T, H]``.
        state: ``[H, V, K]`` float32 or float64, updated in place.
        scale: factor on the queries.
        normalize: divide queries and keys by their lengths.

    Returns:
        ``[T, H, V]`` in the state's dtype.
    """
    tokens, heads, height = value.shape
    chunk = CHUNK
    while chunk > _LEAST_CHUNK and 2 * tokens <= chunk:
        chunk //= 2
    count = -(-tokens // chunk)

    def cut(x: torch.Tensor) -> torch.Tensor:
        """``[heads, chunks, chunk, width]``, with zeros behind the last token."""
        x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, count * chunk - tokens))
        return x.transpose(0, 1).unflatten(1, (count, chunk)).contiguous()

    groups = key.shape[1]
    # Products of keys belong to a key head, unless every value head decays their channels itself.
    shared = heads // groups
    scalar = decay.dim() == 2
    held = groups if scalar else heads
    queries = cut(prepared(query, held, normalize) * scale)
    keys = cut(prepared(key, held, normalize))
    values, betas = cut(widened(value)), cut(widened(beta).unsqueeze(-1))
    sums = cut(widened(decay.unsqueeze(-1) if scalar else decay)).cumsum(2)
    if scalar:
        between = (sums - sums.mT).tril().exp_()
        both = torch.cat((keys, queries), dim=2) @ keys.mT
        system, inner = both.repeat_interleave(shared, dim=0).split(chunk, dim=2)
        system, inner = system * between, (inner * between).tril_()
        queries, keys = (x.repeat_interleave(shared, dim=0) for x in (queries, keys))
    else:
        system, inner = _products(queries, keys, sums)
    total = sums[:, :, -1:]
    grown = sums.exp()
    right = torch.cat((values, keys * grown), dim=-1) * betas
    solved = torch.linalg.solve_triangular(system * betas, right, upper=False, unitriangular=True)
    # What reads the state: rows of W, then decayed queries.
    readers = torch.cat((solved[..., height:], queries * grown), dim=2)
    writers = (keys * (total - sums).exp()).mT
    factors = total.exp()
    out = values
    for c in range(count):
        read = readers[:, c] @ state.mT
        change = solved[:, c, :, :height] - read[:, :chunk]
        torch.baddbmm(read[:, chunk:], inner[:, c], change, out=out[:, c])
        state.mul_(factors[:, c]).baddbmm_(change.mT, writers[:, c].mT)
    return out.flatten(1, 2)[:, :tokens].transpose(0, 1)


def _products(
    queries: torch.Tensor, keys: torch.Tensor, sums: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Products of keys with keys, strictly lower, and of queries with keys, lower.

    A pair ``i > j`` is parted once by the middle ``m`` of a block of 2, 4, 8, ... tokens, and there
    ``exp(G[i] - G[j]) = exp(G[i] - G[m]) exp(G[m] - G[j])``, whose exponents are both at most 0.

    Args:
        queries: ``[H, N, C, K]``, scaled.
        keys: ``[H, N, C, K]``.
        sums: ``[H, N, C, K]``, decays summed over each chunk.
    """
    heads, count, chunk, width = keys.shape
    system = keys.new_zeros(heads * count, chunk, chunk)
    inner = torch.zeros_like(system)
    inner.diagonal(dim1=1, dim2=2).copy_((queries * keys).sum(-1).flatten(0, 1))
    block = 2
    while block <= chunk:
        shape = (heads * count * (chunk // block), 2, block // 2, width)
        at = sums.reshape(shape)
        middle = at[:, 1, :1]
        early = (keys.reshape(shape)[:, 0] * (middle - at[:, 0]).exp()).mT
        late = (at[:, 1] - middle).exp()
        for to, rows in ((system, keys), (inner, queries)):
            # The blocks beside the diagonal: their axis comes last.
            blocks = to.unflatten(2, (-1, block)).unflatten(1, (-1, block)).diagonal(dim1=1, dim2=3)
            found = (rows.reshape(shape)[:, 1] * late) @ early
            found = found.unflatten(0, (heads * count, -1)).movedim(1, -1)
            blocks[:, block // 2 :, : block // 2].copy_(found)
        block *= 2
    shape = (heads, count, chunk, chunk)
    return system.view(shape), inner.view(shape)
