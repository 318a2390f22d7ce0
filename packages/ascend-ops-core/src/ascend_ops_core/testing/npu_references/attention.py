"""Fused attention for inference, over a cache in pages or over plain sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ascend_ops_core.testing.npu_references.limits import (
    HALVES,
    require,
    require_contiguous,
    require_dtype,
    require_family,
    require_filled,
    require_rank,
)
from ascend_ops_core.testing.npu_references.registry import reference

_EVERYTHING = 2**31 - 1
_CAUSAL, _BAND = 3, 4
_MASK = 2048


@reference("npu_fused_infer_attention_score", documented=("A2", "A3"))
def npu_fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    dequant_scale1: torch.Tensor | None = None,
    quant_scale1: torch.Tensor | None = None,
    dequant_scale2: torch.Tensor | None = None,
    quant_scale2: torch.Tensor | None = None,
    quant_offset2: torch.Tensor | None = None,
    antiquant_scale: torch.Tensor | None = None,
    antiquant_offset: torch.Tensor | None = None,
    key_antiquant_scale: torch.Tensor | None = None,
    key_antiquant_offset: torch.Tensor | None = None,
    value_antiquant_scale: torch.Tensor | None = None,
    value_antiquant_offset: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    query_padding_size: torch.Tensor | None = None,
    kv_padding_size: torch.Tensor | None = None,
    key_shared_prefix: torch.Tensor | None = None,
    value_shared_prefix: torch.Tensor | None = None,
    actual_shared_prefix_len: Sequence[int] | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    key_rope_antiquant_scale: torch.Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = _EVERYTHING,
    next_tokens: int = _EVERYTHING,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    antiquant_mode: int = 0,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    softmax_lse_flag: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``softmax(scale * query key^T + pse_shift, masked) value``, over pages or plain sequences.

    Limits: everything float16 or bfloat16 and contiguous; at most 256 heads, at most 64 of them
    for each key head; D a multiple of 16 up to 512; of a token less than 65535 query values and at
    most 65535 key values; a table of two dimensions, int32, one row for each request; blocks of
    128 to 512 rows in steps of 128, for one token of a request multiples of 16 up to 512. With
    several tokens modes 3 and 4 with a mask of 2048 x 2048, which is true above the diagonal; with
    one token no mask is used.

    Modelled: BSND. With a block table a cache of (blocks, rows, values), sparse_mode 0 for one
    token, 3 and 4 for several. Without one sequences of one length, no mask, and pse_shift of (1,
    heads, length, length) in the query's dtype. No rotated parts, quantisation, prefix or padding.

    Assumed: rows of the compressed mask count from the last token of a context (mode 3) and so do
    pre_tokens and next_tokens (mode 4); pse_shift is added behind the factor; products and sums in
    float32.
    """
    op = "npu_fused_infer_attention_score"
    others = (
        actual_seq_lengths, dequant_scale1, quant_scale1, dequant_scale2, quant_scale2,
        quant_offset2, antiquant_scale, antiquant_offset, key_antiquant_scale, key_antiquant_offset,
        value_antiquant_scale, value_antiquant_offset, query_padding_size, kv_padding_size,
        query_rope, key_rope, key_shared_prefix, value_shared_prefix, actual_shared_prefix_len,
        key_rope_antiquant_scale,
    )  # fmt: skip
    require(all(one is None for one in others), op, "quantisation, prefix", "not modelled")
    modes = (inner_precise, antiquant_mode, key_antiquant_mode, value_antiquant_mode)
    require(modes == (0, 0, 0, 0), op, f"modes {modes}", "modelled are zeros")
    require_family(op, "A2", "A3")
    require(input_layout == "BSND", op, f"input_layout={input_layout!r}", "modelled is BSND")
    for name, one in (("query", query), ("key", key), ("value", value)):
        require_dtype(op, name, one, HALVES)
    require(key.dtype == value.dtype == query.dtype, op, "several dtypes", "it takes one")
    require_rank(op, "query", query, 4, 4)
    require(key.shape == value.shape, op, "key and value", "they are alike")
    key_heads = num_key_value_heads or num_heads
    batch, tokens, heads, width = query.shape
    require(heads == num_heads <= 256, op, f"{num_heads} heads", f"{heads}, at most 256")
    require(
        num_heads % key_heads == 0 and num_heads <= 64 * key_heads,
        op, f"{num_heads} heads with {key_heads} key heads", "a multiple, at most 64",
    )  # fmt: skip
    require(width <= 512 and width % 16 == 0, op, f"D={width}", "multiples of 16 up to 512")
    require(heads * width < 65535, op, f"{heads * width} values of a token", "less than 65535")
    require_filled(op, query=query, key=key, block_table=block_table)
    require_contiguous(
        op, query=query, key=key, value=value, block_table=block_table, pse_shift=pse_shift
    )
    shift = torch.zeros(()) if pse_shift is None else _shift(op, query, pse_shift)
    band = None
    if block_table is None:
        given = (atten_mask, actual_seq_lengths_kv)
        require(all(one is None for one in given), op, "a mask or lengths", "not modelled")
        require(list(key.shape) == [batch, tokens, key_heads, width], op, "key", "as long as query")
        keys, values = list(key.float()), list(value.float())
    else:
        require(pse_shift is None, op, "a shift with a cache in pages", "not modelled")
        lens = list(actual_seq_lengths_kv or ())
        require_rank(op, "key", key, 3, 3)
        require_rank(op, "block_table", block_table, 2, 2)
        require_dtype(op, "block_table", block_table, (torch.int32,))
        require(len(lens) == batch == len(block_table), op, f"{len(lens)} lengths", "one a request")
        require(block_size == key.shape[1], op, f"block_size={block_size}", f"{key.shape[1]}")
        require(key.shape[2] == key_heads * width <= 65535, op, f"rows {list(key.shape)}", "K x D")
        if tokens > 1:
            fits = block_size % 128 == 0 and 128 <= block_size <= 512
            require(fits, op, f"blocks of {block_size}", "128 to 512 in steps of 128")
        else:
            fits = block_size % 16 == 0 and block_size <= 512
            require(fits, op, f"blocks of {block_size}", "multiples of 16 up to 512")
            require(max(lens) <= 262144, op, f"{max(lens)} tokens", "at most 262144")
        band = _band(op, tokens, sparse_mode, atten_mask, pre_tokens, next_tokens)
        keys = _contexts(key, block_table, lens, key_heads)
        values = _contexts(value, block_table, lens, key_heads)
    out = torch.empty((batch, tokens, heads, width), dtype=query.dtype)
    lse = torch.empty(batch, heads, tokens, 1)
    for b in range(batch):
        context = len(keys[b])
        require(context >= tokens, op, f"{tokens} tokens in a context of {context}", "a part")
        at = torch.arange(context - tokens, context).unsqueeze(-1)
        row = torch.arange(context)
        hidden = torch.zeros(tokens, context, dtype=torch.bool)
        if band is not None:
            hidden = (row > at + band[1]) | (row < at - band[0])
        k, v = (one.repeat_interleave(heads // key_heads, 1) for one in (keys[b], values[b]))
        logits = torch.einsum("qhd,khd->hqk", query[b].float(), k) * scale + shift
        logits = logits.masked_fill(hidden, float("-inf"))
        lse[b] = logits.logsumexp(-1, keepdim=True)
        out[b] = torch.einsum("hqk,khd->qhd", (logits - lse[b]).exp(), v).to(out.dtype)
    return out, lse if softmax_lse_flag else torch.zeros(0)


def _contexts(
    cache: torch.Tensor, table: torch.Tensor, lens: Sequence[int], key_heads: int
) -> list[torch.Tensor]:
    """``[context, K, D]`` float32 rows of every request."""
    found = []
    for blocks, context in zip(table, lens, strict=True):
        used = blocks[: -(-context // cache.shape[1])].long()
        found.append(cache[used].flatten(0, 1)[:context].float().unflatten(1, (key_heads, -1)))
    return found


def _shift(op: str, query: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    _, tokens, heads, _ = query.shape
    require_dtype(op, "pse_shift", shift, (query.dtype,))
    wanted = [1, heads, tokens, tokens]
    require(list(shift.shape) == wanted, op, f"pse_shift {list(shift.shape)}", f"{wanted}")
    return shift[0].float()


def _band(
    op: str,
    tokens: int,
    sparse_mode: int,
    mask: torch.Tensor | None,
    pre_tokens: int,
    next_tokens: int,
) -> tuple[int, int] | None:
    """How many tokens before and after its own a query sees; None for all."""
    if tokens == 1:
        require(sparse_mode == 0 and mask is None, op, f"mode {sparse_mode}", "0 for one token")
        return None
    require(sparse_mode in (_CAUSAL, _BAND), op, f"sparse_mode={sparse_mode}", "modelled: 3, 4")
    assert mask is not None
    require_dtype(op, "atten_mask", mask, (torch.bool, torch.int8, torch.uint8))
    require(list(mask.shape[-2:]) == [_MASK, _MASK], op, f"mask {list(mask.shape)}", "2048 x 2048")
    above = torch.ones(_MASK, _MASK, dtype=torch.bool).triu(1)
    require(torch.equal(mask.view(_MASK, _MASK).bool(), above), op, "a mask", "true above only")
    if sparse_mode == _CAUSAL:
        return _EVERYTHING, 0
    require(pre_tokens >= 0, op, f"pre_tokens={pre_tokens}", "0 or more")
    return pre_tokens, next_tokens


@reference("npu_fused_infer_attention_score_v2", documented=("A2", "A3"))
def npu_fused_infer_attention_score_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    block_table: torch.Tensor | None = None,
    dequant_scale_query: torch.Tensor | None = None,
    dequant_scale_key: torch.Tensor | None = None,
    dequant_offset_key: torch.Tensor | None = None,
    dequant_scale_value: torch.Tensor | None = None,
    dequant_offset_value: torch.Tensor | None = None,
    dequant_scale_key_rope: torch.Tensor | None = None,
    quant_scale_out: torch.Tensor | None = None,
    quant_offset_out: torch.Tensor | None = None,
    quant_scale_p: torch.Tensor | None = None,
    learnable_sink: torch.Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_scale: float = 1.0,
    pre_tokens: int = _EVERYTHING,
    next_tokens: int = _EVERYTHING,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    block_size: int = 0,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    value_quant_mode: int = 0,
    inner_precise: int = 0,
    return_softmax_lse: bool = False,
    **dtypes: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with latents of 512 as keys and values and rotated parts of 64 beside them.

    Limits: everything float16 or bfloat16 and contiguous; query heads a power of two up to 128, one
    key head; blocks of 16 or 128 rows; 1 to 16 tokens of every request, at most 4096 requests;
    sparse_mode 0 without a mask if each has one token, else 3 with one.

    Modelled: TND over a cache of (blocks, rows, values); lengths of queries accumulated, those of
    keys not.

    Assumed: as npu_fused_infer_attention_score; mode 3 is right for requests of one token among
    others.
    """
    op = "npu_fused_infer_attention_score_v2"
    others = (
        pse_shift, dequant_scale_query, dequant_scale_key, dequant_offset_key, dequant_scale_value,
        dequant_offset_value, dequant_scale_key_rope, quant_scale_out, quant_offset_out,
        quant_scale_p, learnable_sink, *dtypes.values(),
    )  # fmt: skip
    require(all(one is None for one in others), op, "quantisation, shift, sink", "not modelled")
    modes = (query_quant_mode, key_quant_mode, value_quant_mode, inner_precise)
    require(modes == (0, 0, 0, 0), op, f"modes {modes}", "modelled are zeros")
    require_family(op, "A2", "A3")
    require(input_layout == "TND", op, f"input_layout={input_layout!r}", "modelled is TND")
    assert query_rope is not None
    assert key_rope is not None
    assert block_table is not None
    given = {
        "query": query, "key": key, "value": value, "query_rope": query_rope, "key_rope": key_rope
    }  # fmt: skip
    for name, one in given.items():
        require_dtype(op, name, one, HALVES)
        require(one.dtype == query.dtype, op, f"{name} of {one.dtype}", "one dtype for all")
        require_rank(op, name, one, 3, 3)
    require_filled(op, **given, block_table=block_table)
    require_contiguous(op, **given, block_table=block_table)
    tokens, heads, width = query.shape
    require(
        heads == num_query_heads <= 128 and heads & (heads - 1) == 0, op, f"{heads} heads",
        "a power of two up to 128",
    )  # fmt: skip
    require(num_key_value_heads == 1, op, f"{num_key_value_heads} key heads", "it is one")
    widths = (width, key.shape[2], query_rope.shape[2], key_rope.shape[2])
    require(widths == (512, 512, 64, 64), op, f"widths {widths}", "512 and 64")
    require(key.data_ptr() == value.data_ptr(), op, "values that are no keys", "latents are both")
    require(query_rope.shape[:2] == query.shape[:2], op, "query_rope", "as query")
    require(key_rope.shape[:2] == key.shape[:2], op, "key_rope", "as key")
    require(block_size == key.shape[1] in (16, 128), op, f"blocks of {block_size}", "16 or 128")
    require_rank(op, "block_table", block_table, 2, 2)
    require_dtype(op, "block_table", block_table, (torch.int32,))
    ends, lens = list(actual_seq_qlen or ()), list(actual_seq_kvlen or ())
    require(
        0 < len(ends) == len(lens) == len(block_table) <= 4096, op,
        f"{len(ends)} and {len(lens)} lengths", "one of each a request, at most 4096",
    )  # fmt: skip
    require(ends[-1] == tokens, op, f"ends {ends}", f"the last is {tokens}")
    counts = [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    require(all(0 < one <= 16 for one in counts), op, f"{counts} tokens", "1 to 16 of a request")
    _band(op, max(counts), sparse_mode, atten_mask, 0, 0)
    require(sparse_mode in (0, _CAUSAL), op, f"sparse_mode={sparse_mode}", "0 or 3")
    rows = _contexts(torch.cat((key, key_rope), -1), block_table, lens, 1)
    both = torch.cat((query, query_rope), -1).float()
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    lse = torch.empty(tokens, heads, 1)
    for own, end, count in zip(rows, ends, counts, strict=True):
        context, part = len(own), slice(end - count, end)
        require(context >= count, op, f"{count} tokens in a context of {context}", "a part")
        hidden = torch.arange(context) > torch.arange(context - count, context).unsqueeze(-1)
        logits = torch.einsum("qhd,kd->hqk", both[part], own[:, 0]) * softmax_scale
        logits = logits.masked_fill(hidden, float("-inf"))
        total = logits.logsumexp(-1, keepdim=True)
        weights = (logits - total).exp()
        out[part] = torch.einsum("hqk,kd->qhd", weights, own[:, 0, :width]).to(out.dtype)
        lse[part] = total.transpose(0, 1)
    return out, lse if return_softmax_lse else torch.zeros(0)
