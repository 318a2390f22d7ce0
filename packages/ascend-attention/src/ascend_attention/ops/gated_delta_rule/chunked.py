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

import torch

from ascend_attention.ops.gated_delta_rule.layout import CHUNK, spans
from ascend_attention.ops.gated_delta_rule.reference import EPSILON, widened

# Chunks whose products are made together, which bounds the memory.
_CHUNKS_TOGETHER = 2
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
    requests = spans(cu_seqlens, value.shape[0], state_indices, state.shape[0])
    out = torch.zeros(value.shape, dtype=value.dtype)
    for (first, last), slot, keeps in zip(
        requests, state_indices.tolist(), has_state.tolist(), strict=True
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
    groups, width = key.shape[1:]
    chunk = CHUNK
    while chunk > _LEAST_CHUNK and 2 * tokens <= chunk:
        chunk //= 2
    count = -(-tokens // chunk)

    def cut(x: torch.Tensor) -> torch.Tensor:
        """``[chunks, heads, chunk, width]``, with zeros behind the last token."""
        held = state.new_zeros(count, x.shape[1], chunk, x.shape[2])
        whole = tokens // chunk
        held[:whole] = x[: whole * chunk].unflatten(0, (whole, chunk)).transpose(1, 2)
        if whole < count:
            held[whole, :, : tokens - whole * chunk] = x[whole * chunk :].transpose(0, 1)
        return held

    def by_value_head(x: torch.Tensor) -> torch.Tensor:
        """With an axis for the value heads that share a key head."""
        return x.unflatten(1, (groups, heads // groups))

    scalar = decay.dim() == 2
    queries, keys = cut(query), cut(key)
    if normalize:
        for x in (queries, keys):
            x.div_((x.square().sum(-1, keepdim=True) + EPSILON).sqrt_())
    queries.mul_(scale)
    betas = cut(beta.unsqueeze(-1))
    sums = by_value_head(cut(decay.unsqueeze(-1) if scalar else decay).cumsum(2))
    if scalar:
        between = (sums - sums.mT).tril_().exp_()
        # Above the diagonal are ones, which no one reads or which are taken away.
        system = (keys @ keys.mT).unsqueeze(2) * between
        inner = ((queries @ keys.mT).unsqueeze(2) * between).tril_()
        queries, keys = queries.unsqueeze(2), keys.unsqueeze(2)
    else:
        queries, keys = (
            x.unsqueeze(2).expand(-1, -1, heads // groups, -1, -1) for x in (queries, keys)
        )
        found = _products(*(x.flatten(1, 2) for x in (queries, keys, sums)))
        system, inner = (by_value_head(x) for x in found)
    total, grown = sums[..., -1:, :], sums.exp()
    right = state.new_empty(count, heads, chunk, height + width)
    torch.mul(cut(value), betas, out=right[..., :height])
    by_value_head(right)[..., height:] = keys * (grown * by_value_head(betas))
    system = system.flatten(1, 2).mul_(betas)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    readers = (queries * grown).flatten(1, 2)
    writers = (keys * (total - sums).exp_()).flatten(1, 2)
    inner, factors = inner.flatten(1, 2), total.exp().flatten(1, 2)
    out = state.new_empty(count, heads, chunk, height)
    for c in range(count):
        change = torch.baddbmm(solved[c, ..., :height], solved[c, ..., height:], state.mT, alpha=-1)
        torch.bmm(readers[c], state.mT, out=out[c])
        out[c].baddbmm_(inner[c], change)
        state.mul_(factors[c]).baddbmm_(change.mT, writers[c])
    return out.transpose(1, 2).flatten(0, 1)[:tokens]


def _products(
    queries: torch.Tensor, keys: torch.Tensor, sums: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Products of keys with keys, strictly lower, and of queries with keys, lower.

    A pair ``i > j`` is parted once by the middle ``m`` of a block of 2, 4, 8, ... tokens, and there
    ``exp(G[i] - G[j]) = exp(G[i] - G[m]) exp(G[m] - G[j])``, whose exponents are both at most 0.

    Args:
        queries: ``[N, H, C, K]``, scaled.
        keys: ``[N, H, C, K]``.
        sums: ``[N, H, C, K]``, decays summed over each chunk.
    """
    count, heads, chunk, width = keys.shape
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
    shape = (count, heads, chunk, chunk)
    return system.view(shape), inner.view(shape)
