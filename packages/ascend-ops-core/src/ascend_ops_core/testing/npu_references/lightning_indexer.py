"""The lightning indexers, sparse attention, and sparse attention over quantised rows."""

from __future__ import annotations

import torch

from ascend_ops_core.testing.npu_references.limits import (
    HALVES,
    family,
    require,
    require_contiguous,
    require_dtype,
    require_family,
    require_filled,
    require_rank,
)
from ascend_ops_core.testing.npu_references.registry import reference

_EVERYTHING = 2**63 - 1
_COUNTS = (*range(1, 2049), *range(3072, 8193, 1024))
_ABSORBED = 2


@reference("npu_lightning_indexer", documented=())
def npu_lightning_indexer(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    *,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_key: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = _EVERYTHING,
    next_tokens: int = _EVERYTHING,
    return_value: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For every query the ``sparse_count`` keys with the best ``sum_h w_h relu(q_h . k)``.

    Limits: query, key and weights float16 or bfloat16 and contiguous; lengths int32, those of
    queries accumulated in layout TND; a table of two dimensions, int32, one row for each request;
    sparse_count 1 to 2048 and multiples of 1024 up to 8192; sparse_mode 0 or 3.

    Modelled: queries as TND, keys as PA_BSND, sparse_mode 3, no values.

    Assumed: 1 key head, width 128, at most 64 heads, blocks of a multiple of 16 rows up to 1024 (as
    vllm-ascend's kernel); scores in float32; a query that sees at most sparse_count keys gets them
    in order, others the best first and among equal scores the earlier; -1 in unused places and
    rows.
    """
    op = "npu_lightning_indexer"
    for name, one in (("query", query), ("key", key), ("weights", weights)):
        require_dtype(op, name, one, HALVES)
    require(not return_value, op, "return_value=True", "it is not modelled")
    return (
        _selected(
            op, query.float(), key.float(), weights.float(), actual_seq_lengths_query,
            actual_seq_lengths_key, block_table, layout_query, layout_key, sparse_count,
            sparse_mode, (pre_tokens, next_tokens), (query, key, weights),
        ),
        query.new_empty(0),
    )  # fmt: skip


@reference("npu_quant_lightning_indexer", documented=("A3", "A5"))
def npu_quant_lightning_indexer(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    query_dequant_scale: torch.Tensor,
    key_dequant_scale: torch.Tensor,
    query_quant_mode: int,
    key_quant_mode: int,
    *,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_key: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = _EVERYTHING,
    next_tokens: int = _EVERYTHING,
    query_dtype: int | None = None,
    key_dtype: int | None = None,
) -> torch.Tensor:
    """The same over keys and queries of eight bits, one scale for each token and head.

    Limits: on A3 int8 with weights and scales of float16; on A5 float8_e4m3fn with weights of
    float16 or bfloat16 and scales of float16 or float32; at most 64 heads; both quantisation modes
    0; the rest as npu_lightning_indexer.

    Modelled: as npu_lightning_indexer, without hifloat8.

    Assumed: as npu_lightning_indexer; scales multiply the rectified products.
    """
    op = "npu_quant_lightning_indexer"
    require_family(op, "A3", "A5")
    fp8 = family() == "A5"
    values = (torch.float8_e4m3fn,) if fp8 else (torch.int8,)
    scales = (torch.float16, torch.float32) if fp8 else (torch.float16,)
    require_dtype(op, "query", query, values)
    require_dtype(op, "key", key, values)
    require_dtype(op, "weights", weights, HALVES if fp8 else (torch.float16,))
    require_dtype(op, "query_dequant_scale", query_dequant_scale, scales)
    require_dtype(op, "key_dequant_scale", key_dequant_scale, scales)
    require(query_quant_mode == 0 == key_quant_mode, op, "a quantisation mode", "it must be 0")
    require(query_dtype is None is key_dtype, op, "a dtype by number", "it is not modelled")
    require_contiguous(op, key_dequant_scale=key_dequant_scale)
    return _selected(
        op,
        query.float(),
        key.float() * key_dequant_scale.float().unsqueeze(-1),
        weights.float() * query_dequant_scale.float(),
        actual_seq_lengths_query,
        actual_seq_lengths_key,
        block_table,
        layout_query,
        layout_key,
        sparse_count,
        sparse_mode,
        (pre_tokens, next_tokens),
        (query, key, weights),
    )


@reference("npu_sparse_flash_attention", documented=())
def npu_sparse_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor | None,
    sparse_indices: torch.Tensor,
    scale_value: float,
    *,
    block_table: torch.Tensor | None = None,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_kv: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = _EVERYTHING,
    next_tokens: int = _EVERYTHING,
    attention_mode: int = 0,
    return_softmax_lse: bool = False,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of every query over the rows that its indices name.

    Limits: everything float16 or bfloat16 and contiguous, indices and lengths int32; valid indices
    before invalid ones; sparse_mode 0 or 3.

    Modelled: queries as TND, rows as PA_BSND, attention_mode 2 with rotated parts, sparse_mode 3,
    blocks of one token, neither sums nor sinks.

    Assumed: 1 row head, rows of 512 + 64, query heads in powers of two up to 128, blocks of a
    multiple of 16 rows up to 1024 (as vllm-ascend's kernel); NaN for a query without tokens.
    """
    op = "npu_sparse_flash_attention"
    assert value is not None
    given = {"query": query, "key": key, "query_rope": query_rope, "key_rope": key_rope}
    for name, one in given.items():
        require(one is not None, op, f"{name}=None", "it is modelled with rotated parts")
        require_dtype(op, name, one, HALVES)
    require(attention_mode == _ABSORBED, op, f"attention_mode={attention_mode}", "modelled is 2")
    require(not return_softmax_lse and sinks is None, op, "sums or sinks", "they are not modelled")
    assert query_rope is not None
    assert key_rope is not None
    require(
        (query.shape[-1], query_rope.shape[-1]) == (512, 64), op, "rows", "they are 512 + 64 wide"
    )
    require_contiguous(op, **given, value=value)
    out = _attended(
        op, torch.cat((query, query_rope), -1).float(), torch.cat((key, key_rope), -1).float(),
        512, sparse_indices, scale_value, block_table, actual_seq_lengths_query,
        actual_seq_lengths_kv, sparse_block_size, layout_query, layout_kv, sparse_mode,
    )  # fmt: skip
    empty = torch.empty(0, dtype=torch.float32)
    return out.to(query.dtype), empty, empty


@reference("npu_kv_quant_sparse_flash_attention", documented=())
def npu_kv_quant_sparse_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sparse_indices: torch.Tensor,
    scale_value: float,
    key_quant_mode: int,
    value_quant_mode: int,
    *,
    key_dequant_scale: torch.Tensor | None = None,
    value_dequant_scale: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_kv: torch.Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = _EVERYTHING,
    next_tokens: int = _EVERYTHING,
    attention_mode: int = 0,
    quant_scale_repo_mode: int = 1,
    tile_size: int = 128,
    rope_head_dim: int = 64,
    key_dtype: int | None = None,
    value_dtype: int | None = None,
) -> torch.Tensor:
    """The same over rows of int8 with their rotated part and scales behind them.

    Limits: queries bfloat16 with the rotated part behind the other; rows int8 that hold int8
    values, rotated values of the query's dtype and float32 scales, one for each tile; both
    quantisation modes 2, attention_mode 2, quant_scale_repo_mode 1; no scales of their own; the
    rest as npu_sparse_flash_attention.

    Modelled: as npu_sparse_flash_attention; tiles of 128.

    Assumed: as npu_sparse_flash_attention; values times scales are rounded to the query's dtype.
    """
    op = "npu_kv_quant_sparse_flash_attention"
    require_dtype(op, "query", query, (torch.bfloat16,))
    require_dtype(op, "key", key, (torch.int8,))
    require_dtype(op, "value", value, (torch.int8,))
    modes = (key_quant_mode, value_quant_mode, attention_mode, quant_scale_repo_mode, tile_size)
    require(
        modes == (2, 2, _ABSORBED, 1, 128), op, f"modes {modes}", "modelled are 2, 2, 2, 1, 128"
    )
    given = (key_dequant_scale, value_dequant_scale, key_dtype, value_dtype)
    require(all(one is None for one in given), op, "scales or dtypes", "they are not modelled")
    width = query.shape[-1] - rope_head_dim
    require((width, rope_head_dim) == (512, 64), op, "rows", "they are 512 + 64 wide")
    used = width + 2 * rope_head_dim + 4 * (width // tile_size)
    require(key.shape[-1] == used, op, f"rows of {key.shape[-1]} bytes", f"they take {used}")
    require_contiguous(op, query=query, key=key, value=value)
    scales = key[..., width + 2 * rope_head_dim :].contiguous().view(torch.float32)
    factor = scales.repeat_interleave(tile_size, -1)
    latent = (key[..., :width].float() * factor).to(query.dtype).float()
    rope = key[..., width : width + 2 * rope_head_dim].contiguous().view(query.dtype).float()
    out = _attended(
        op, query.float(), torch.cat((latent, rope), -1), width, sparse_indices, scale_value,
        block_table, actual_seq_lengths_query, actual_seq_lengths_kv, sparse_block_size,
        layout_query, layout_kv, sparse_mode,
    )  # fmt: skip
    return out.to(query.dtype)


def _selected(
    op: str,
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    ends: torch.Tensor | None,
    lens: torch.Tensor | None,
    table: torch.Tensor | None,
    layout_query: str,
    layout_key: str,
    count: int,
    mode: int,
    window: tuple[int, int],
    raw: tuple[torch.Tensor, ...],
) -> torch.Tensor:
    require(layout_query == "TND", op, f"layout_query={layout_query!r}", "modelled is TND")
    require(layout_key == "PA_BSND", op, f"layout_key={layout_key!r}", "modelled is PA_BSND")
    require(window == (_EVERYTHING,) * 2, op, f"a window {window}", "it is not modelled")
    require_rank(op, "query", query, 3, 3)
    require_rank(op, "key", key, 4, 4)
    heads, width = query.shape[1:]
    require(heads <= 64, op, f"{heads} heads", "it takes at most 64")
    require(width == 128 == key.shape[3], op, f"width {width}", "it takes 128")
    require(list(weights.shape) == [*query.shape[:2]], op, "weights", "they are [T, N]")
    require(count in _COUNTS, op, f"sparse_count={count}", "1 to 2048, or 1024s up to 8192")
    require_contiguous(op, query=raw[0], key=raw[1], weights=raw[2])
    ends, lens, table = _lengths(op, ends, lens, table, key, mode)
    out = torch.full((query.shape[0], 1, count), -1, dtype=torch.int32)
    for request, (first, last) in enumerate(_ranges(ends)):
        context = int(lens[request])
        rows = _rows(key, table[request], context)
        for t in range(first, last):
            seen = context - (last - 1 - t)
            if seen <= count:
                out[t, 0, : max(seen, 0)] = torch.arange(max(seen, 0))
                continue
            scores = weights[t] @ torch.relu(query[t] @ rows[:seen].T)
            out[t, 0] = scores.sort(descending=True, stable=True).indices[:count]
    return out


def _attended(
    op: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value_width: int,
    indices: torch.Tensor,
    scale: float,
    table: torch.Tensor | None,
    ends: torch.Tensor | None,
    lens: torch.Tensor | None,
    block: int,
    layout_query: str,
    layout_kv: str,
    mode: int,
) -> torch.Tensor:
    require(layout_query == "TND", op, f"layout_query={layout_query!r}", "modelled is TND")
    require(layout_kv == "PA_BSND", op, f"layout_kv={layout_kv!r}", "modelled is PA_BSND")
    require(block == 1, op, f"sparse_block_size={block}", "modelled is 1")
    require_rank(op, "query", query, 3, 3)
    require_rank(op, "key", key, 4, 4)
    tokens, heads = query.shape[:2]
    require(0 < heads <= 128 and heads & (heads - 1) == 0, op, f"{heads} heads", "a power of two")
    require_dtype(op, "sparse_indices", indices, (torch.int32,))
    require_contiguous(op, sparse_indices=indices)
    require(
        list(indices.shape[:2]) == [tokens, 1], op, f"indices {list(indices.shape)}", "[T, 1, K]"
    )
    ends, lens, table = _lengths(op, ends, lens, table, key, mode)
    out = torch.full((tokens, heads, value_width), float("nan"))
    for request, (first, last) in enumerate(_ranges(ends)):
        context = int(lens[request])
        rows = _rows(key, table[request], context)
        for t in range(first, last):
            chosen = indices[t, 0]
            kept = int((chosen >= 0).sum())
            require(bool((chosen[:kept] >= 0).all()), op, "indices", "valid ones come first")
            chosen = chosen[:kept].long()
            seen = context - (last - 1 - t)
            require(bool((chosen < seen).all()), op, "indices", "a query sees no later token")
            if kept:
                one = (query[t] @ rows[chosen].T * scale).softmax(-1)
                out[t] = one @ rows[chosen, :value_width]
    return out


def _lengths(
    op: str,
    ends: torch.Tensor | None,
    lens: torch.Tensor | None,
    table: torch.Tensor | None,
    key: torch.Tensor,
    mode: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    require(mode == 3, op, f"sparse_mode={mode}", "modelled is 3")
    given = {"actual_seq_lengths_query": ends, "lengths of keys": lens, "block_table": table}
    for name, one in given.items():
        require(one is not None, op, f"{name}=None", "it is needed in these layouts")
        require_dtype(op, name, one, (torch.int32,))
    require_filled(op, key=key, **{name.replace(" ", "_"): one for name, one in given.items()})
    require_contiguous(op, block_table=table)
    assert ends is not None
    assert lens is not None
    assert table is not None
    require_rank(op, "block_table", table, 2, 2)
    require(len(ends) == len(lens) == len(table), op, "lengths and a table", "one for each request")
    require(bool((ends.diff() >= 0).all()), op, "lengths of queries", "they are accumulated")
    require(key.shape[2] == 1, op, f"{key.shape[2]} key heads", "it takes 1")
    page = key.shape[1]
    require(page % 16 == 0 and page <= 1024, op, f"blocks of {page} rows", "16s up to 1024")
    return ends, lens, table


def _ranges(ends: torch.Tensor) -> list[tuple[int, int]]:
    last = ends.tolist()
    return list(zip([0, *last[:-1]], last, strict=True))


def _rows(cache: torch.Tensor, table: torch.Tensor, count: int) -> torch.Tensor:
    """The rows of a request in order."""
    page = cache.shape[1]
    blocks = table[: -(-max(count, 0) // page)].long()
    return cache[blocks].flatten(0, 2)[: max(count, 0)]
