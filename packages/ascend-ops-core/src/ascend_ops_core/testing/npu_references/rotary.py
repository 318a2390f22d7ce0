"""Rotary position embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ascend_ops_core.testing.npu_references.limits import (
    FLOATS,
    HALVES,
    family,
    require,
    require_dtype,
    require_filled,
    require_rank,
)
from ascend_ops_core.testing.npu_references.registry import reference

_MAX_HEAD = 896


@reference("npu_rotary_mul", documented=("A2", "A3"))
def npu_rotary_mul(
    self: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    """``r1 * x + r2 * turned(x)``.

    ``turned`` of the mode "half" is ``cat(-x2, x1)`` of the halves, of "interleave" it is ``(-odd,
    even)`` interleaved, and with ``rotate`` (a matrix [D, D]) ``x @ rotate``.

    Limits: 4 dimensions, float16, bfloat16 or float32; D even and below 896. The first two of the
    other dimensions are B and N in some order of the layouts BNSD, BSND, SBND: in mode "half"
    each of B, N is below 1000, in mode "interleave" B x N is below 1000. r1 and r2 have size 1
    where the layouts allow it: N always; B too, and in mode "interleave" both.

    Assumed: r1 and r2 have the dtype of x; since the layout is not an argument, shapes are
    accepted if any layout accepts them.
    """
    op = "npu_rotary_mul"
    require_dtype(op, "self", self, FLOATS)
    for name, table in (("r1", r1), ("r2", r2)):
        require_rank(op, name, table, 4, 4)
        require_dtype(op, name, table, (self.dtype,))
        require(table.shape == r1.shape, op, f"{name} {list(table.shape)}", "r1 and r2 are alike")
    require_rank(op, "self", self, 4, 4)
    d = self.shape[-1]
    require(d % 2 == 0 and d < _MAX_HEAD, op, f"D={d}", "it must be even and below 896")
    require(
        any(_fits(self.shape, r1.shape, layout, rotary_mode) for layout in _LAYOUTS),
        op,
        f"self {list(self.shape)} with r1 {list(r1.shape)} in mode {rotary_mode!r}",
        "no layout takes it: 'half' needs B, N < 1000 and r1 as 11SD, B1SD or BNSD; 'interleave' "
        "B x N < 1000 and r1 as 11SD (or these in the order BSND, SBND)",
    )
    wide = self.float()
    turned = wide @ rotate.float() if rotate is not None else _turned(op, wide, rotary_mode)
    return (r1.float() * wide + r2.float() * turned).to(self.dtype)


_LAYOUTS = {"BNSD": (0, 1), "BSND": (0, 2), "SBND": (1, 2)}
"""Positions of B and N."""


def _fits(x: torch.Size, table: torch.Size, layout: str, mode: str) -> bool:
    batch, heads = _LAYOUTS[layout]
    sequence = 3 - batch - heads
    if table[-1] != x[-1] or table[sequence] != x[sequence]:
        return False
    # 11SD, B1SD, BNSD: heads only where batch is there too.
    forms = {(1, 1)}
    small = x[batch] * x[heads] < 1000
    if mode == "half":
        forms |= {(x[batch], 1), (x[batch], x[heads])}
        small = x[batch] < 1000 and x[heads] < 1000
    return small and (table[batch], table[heads]) in forms


@reference("npu_interleave_rope", documented=())
def npu_interleave_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Even elements first, then odd, of the last dimension, then rotated by halves.

    Assumed: all of it, the operator being undocumented: x [B, N, S, 64] and cos, sin [B, 1 or N, 1
    or S, 64], of one dtype, float16 or bfloat16, as DeepSeek's rotary part of a key is used.
    """
    op = "npu_interleave_rope"
    require_dtype(op, "x", x, HALVES)
    require_rank(op, "x", x, 4, 4)
    require(x.shape[-1] == 64, op, f"D={x.shape[-1]}", "it must be 64")
    for name, table in (("cos", cos), ("sin", sin)):
        require_dtype(op, name, table, (x.dtype,))
        require_rank(op, name, table, 4, 4)
    wide = torch.cat((x[..., ::2], x[..., 1::2]), dim=-1).float()
    return (cos.float() * wide + sin.float() * _turned(op, wide, "half")).to(x.dtype)


@reference("npu_apply_rotary_pos_emb", documented=("A2", "A3", "A5", "310P"))
def npu_apply_rotary_pos_emb(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layout: str = "BSND",
    rotary_mode: str = "half",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotates query and key; both are overwritten, which the schema does not say.

    Returns copies of what was written, so that code that goes on with its arguments differs from
    code that goes on with the results only if it relies on them being unchanged.

    Limits on A2, A3, 310P: layouts BSND and TND, mode "half", D 64 or 128, tables with one head,
    no empty tensors. On A5: BSND, SBND, BNSD, TND, modes "half", "interleave", "quarter", D at most
    1024, tables at most as wide as the heads. One dtype for all, float32, float16 or bfloat16
    (310P: no bfloat16).

    Assumed: where tables are narrower than the heads, the elements behind them stay as they are;
    "quarter" is not modelled.
    """
    op = "npu_apply_rotary_pos_emb"
    here = family()
    require_dtype(op, "query", query, FLOATS[::2] if here == "310P" else FLOATS)
    for name, one in (("key", key), ("cos", cos), ("sin", sin)):
        require_dtype(op, name, one, (query.dtype,))
        require_rank(op, name, one, query.dim(), query.dim())
    rank = 3 if layout == "TND" else 4
    require_rank(op, "query", query, rank, rank)
    d, width = query.shape[-1], cos.shape[-1]
    require(key.shape[-1] == d, op, f"D of key {key.shape[-1]}", f"it must be query's {d}")
    require(sin.shape == cos.shape, op, f"sin {list(sin.shape)}", f"it must be {list(cos.shape)}")
    if here == "A5":
        layouts, modes = ["BSND", "SBND", "BNSD", "TND"], ["half", "interleave"]
        require(d <= 1024 and width <= d, op, f"D={d}, width {width}", "width <= D <= 1024")
    else:
        layouts, modes = ["BSND", "TND"], ["half"]
        require(d in (64, 128), op, f"D={d}", "it must be 64 or 128")
        require(width in (64, 128) and width <= d, op, f"width {width}", "it must be 64 or 128")
        require_filled(op, query=query, key=key, cos=cos, sin=sin)
    require(layout in layouts, op, f"layout={layout!r}", f"modelled are {', '.join(layouts)}")
    require(rotary_mode in modes, op, f"rotary_mode={rotary_mode!r}", f"modelled: {modes}")
    heads = 1 if layout == "BNSD" else rank - 2
    require(cos.shape[heads] == 1, op, f"{cos.shape[heads]} heads in cos", "it must be one")
    for one in (query, key):
        wide = one[..., :width].float()
        turned = _turned(op, wide, rotary_mode)
        one[..., :width] = (cos.float() * wide + sin.float() * turned).to(one.dtype)
    return query.clone(), key.clone()


@reference("npu_mrope", documented=())
def npu_mrope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    *,
    mrope_section: Sequence[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotates query [T, Nq x head_size] and key [T, Nk x head_size] by a table of positions.

    ``positions`` int32 or int64 [T], or [3, T] with ``mrope_section`` (three sizes whose sum is
    rotary_dim / 2): frequency j takes its angle from the first, second or third row of positions.
    ``cos_sin_cache`` is [max positions, rotary_dim].

    Limits: bfloat16, float16, float32; rotary_dim a multiple of 32 (float32: 16).

    Assumed: the cache holds rotary_dim / 2 cosines, then as many sines; only the first rotary_dim
    elements of a head turn; the cache mode "interleave" is not modelled.
    """
    op = "npu_mrope"
    require_dtype(op, "query", query, FLOATS)
    require_dtype(op, "key", key, (query.dtype,))
    require_dtype(op, "cos_sin_cache", cos_sin_cache, (query.dtype,))
    require_dtype(op, "positions", positions, (torch.int32, torch.int64))
    for name, one in (("query", query), ("key", key), ("cos_sin_cache", cos_sin_cache)):
        require_rank(op, name, one, 2, 2)
    rotary = cos_sin_cache.shape[1]
    multiple = 16 if query.dtype == torch.float32 else 32
    require(rotary % multiple == 0, op, f"rotary_dim={rotary}", f"a multiple of {multiple}")
    require(cache_mode in (None, "default"), op, f"cache_mode={cache_mode!r}", "'default' only")
    cos, sin = cos_sin_cache[positions.long()].float().chunk(2, -1)
    sections = list(mrope_section or (0, 0, 0))
    if any(sections):
        require(sum(sections) == rotary // 2, op, f"mrope_section={sections}", f"sum {rotary // 2}")
        require_rank(op, "positions", positions, 2, 2)
        cos = torch.cat([one[i] for i, one in enumerate(cos.split(sections, -1))], -1)
        sin = torch.cat([one[i] for i, one in enumerate(sin.split(sections, -1))], -1)
    else:
        require_rank(op, "positions", positions, 1, 1)
    mode = rotary_mode or "half"
    if mode == "half":
        cos, sin = cos.repeat(1, 2), sin.repeat(1, 2)
    else:
        cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    results = []
    for one in (query, key):
        heads = one.view(one.shape[0], -1, head_size).clone()
        wide = heads[..., :rotary].float()
        turned = _turned(op, wide, mode)
        heads[..., :rotary] = (cos[:, None] * wide + sin[:, None] * turned).to(one.dtype)
        results.append(heads.view(one.shape))
    return results[0], results[1]


def _turned(op: str, wide: torch.Tensor, mode: str) -> torch.Tensor:
    require(mode in ("half", "interleave"), op, f"mode {mode!r}", "it takes 'half', 'interleave'")
    if mode == "half":
        first, second = wide.chunk(2, -1)
        return torch.cat((-second, first), -1)
    return torch.stack((-wide[..., 1::2], wide[..., ::2]), -1).flatten(-2)
