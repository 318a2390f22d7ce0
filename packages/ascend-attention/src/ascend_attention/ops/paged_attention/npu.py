"""Paged attention by ``npu_fused_infer_attention_score``, and the limits of every implementation.

The operator takes requests of one length (layout BSND), or any lengths without a cache in pages
(TND), so requests of the same number of tokens that follow each other share a call. Lengths are the
host's: a graph of the device would keep those of its capture, so there the kernel runs. Not run on
hardware.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

from ascend_attention.ops.paged_attention.masks import causal_mask
from ascend_attention.ops.paged_attention.runs import equal_runs

_NAME = "npu_fused_infer_attention_score"
_DTYPES = (torch.bfloat16, torch.float16)
_WIDEST = 512
_MOST_HEADS = 256
_MOST_GROUPED = 64
_MOST_QUERY_VALUES = 65534
_MOST_KEY_VALUES = 65535
_MOST_ROWS = 512
_MOST_CONTEXT = 262144
_MOST_VALUES = 2**31 - 1
_CAUSAL = 3
_BAND = 4

_ROWS = 16
# The compiler for A5 crashes on tiles of 16 rows of 16-bit values.
_ROWS_OF_HALVES = {"A5": 32}


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    sinks: torch.Tensor | None,
    scale: float,
    window: int,
    query_ends: Sequence[int],
    seq_lens: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.paged_attention.paged_attention`; 0 is no window."""
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    lse = torch.full(query.shape[:2], float("-inf"), dtype=torch.float32, device=query.device)
    for first, count, start, each in equal_runs(query_ends):
        lens = list(seq_lens[first : first + count])
        mask: dict[str, object] = {}
        if each > 1:
            mask = {"atten_mask": causal_mask(query.device), "sparse_mode": _CAUSAL}
            if _limits(window, lens):
                mask |= {"sparse_mode": _BAND, "pre_tokens": window - 1, "next_tokens": 0}
        end = start + count * each
        attended, logarithm = torch.ops.npu.npu_fused_infer_attention_score(
            query[start:end].unflatten(0, (count, each)),
            key_cache.flatten(2),
            value_cache.flatten(2),
            block_table=block_table[first : first + count],
            actual_seq_lengths_kv=lens,
            num_heads=query.shape[1],
            num_key_value_heads=key_cache.shape[2],
            scale=scale,
            input_layout="BSND",
            block_size=key_cache.shape[1],
            softmax_lse_flag=True,
            **mask,
        )
        out[start:end] = attended.flatten(0, 1)
        lse[start:end] = logarithm.squeeze(-1).transpose(1, 2).flatten(0, 1)
    return out, lse


def _limits(window: int, seq_lens: Sequence[int]) -> bool:
    """Whether a window hides anything."""
    return 0 < window < max(seq_lens, default=0)


def supports_paged_attention(
    facts: DeviceFacts,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    sinks: torch.Tensor | None,
    scale: float,
    window: int,
    query_ends: Sequence[int],
    seq_lens: Sequence[int],
) -> Support:
    """A2 and A3, halves, lengths on the host, no sinks, blocks of 128 rows and multiples up to 512.

    Where every request has one token blocks may be any multiple of 16; a window that hides
    something needs several tokens of each.
    """
    _, heads, width = query.shape
    rows, key_heads = key_cache.shape[1:3]
    lens = [run.length for run in equal_runs(query_ends)]
    several = any(one > 1 for one in lens)
    multiple = 128 if several else 16
    return first_refusal(
        (
            facts.family in ("A2", "A3"),
            f"device family {facts.family}, {_NAME} is documented for A2, A3",
        ),
        (
            query.dtype in _DTYPES,
            f"queries of {query.dtype}, {_NAME} takes torch.bfloat16, torch.float16",
        ),
        (len(seq_lens) > 0, f"lengths that only the device knows, {_NAME} takes the host's"),
        (
            query.numel() > 0 and key_cache.numel() > 0 and block_table.numel() > 0 and bool(lens),
            f"no queries, rows or blocks, {_NAME} needs some",
        ),
        (sinks is None, f"sinks, {_NAME} has none"),
        (
            heads <= _MOST_HEADS and heads <= _MOST_GROUPED * key_heads,
            f"{heads} heads with {key_heads} key heads, {_NAME} takes {_MOST_HEADS}, and "
            f"{_MOST_GROUPED} for each key head",
        ),
        (
            width <= _WIDEST and width % 16 == 0,
            f"heads of {width}, {_NAME} takes multiples of 16 up to {_WIDEST}",
        ),
        (
            heads * width <= _MOST_QUERY_VALUES and key_heads * width <= _MOST_KEY_VALUES,
            f"{heads * width} and {key_heads * width} values of a token, {_NAME} takes "
            f"{_MOST_QUERY_VALUES} of queries and {_MOST_KEY_VALUES} of keys",
        ),
        (
            rows % multiple == 0 and rows <= _MOST_ROWS,
            f"blocks of {rows} rows, {_NAME} takes multiples of {multiple} up to {_MOST_ROWS} "
            f"for {'several tokens' if several else 'one token'} of a request",
        ),
        (
            key_cache.numel() <= _MOST_VALUES,
            f"a cache of {key_cache.numel()} values, {_NAME} counts in int32",
        ),
        (
            max(seq_lens, default=0) <= _MOST_CONTEXT,
            # Steps differ, and every reason is logged once.
            f"a context of more than {_MOST_CONTEXT} tokens, {_NAME} takes these",
        ),
        (
            not _limits(window, seq_lens) or all(one > 1 for one in lens),
            f"a window of {window} and one token of a request, for which {_NAME} has no mask",
        ),
        (
            block_table.dtype == torch.int32,
            f"a block table of {block_table.dtype}, {_NAME} takes torch.int32",
        ),
        (
            all(x.is_contiguous() for x in (query, key_cache, value_cache, block_table)),
            f"queries, rows or a table with gaps, {_NAME} needs them contiguous",
        ),
    )


def supports_paged_attention_triton(
    facts: DeviceFacts,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    request: torch.Tensor,
    position: torch.Tensor,
    sinks: torch.Tensor | None,
    scale: float,
    window: int,
    query_ends: Sequence[int],
    seq_lens: Sequence[int],
) -> Support:
    """Heads of up to 512 values without gaps inside; blocks of a multiple of 16 rows.

    On A5 a multiple of 32 rows of 16-bit values.
    """
    half = key_cache.element_size() == 2
    rows = _ROWS_OF_HALVES.get(facts.family, _ROWS) if half else _ROWS
    return first_refusal(
        (
            query.dtype in FLOATS and key_cache.dtype == query.dtype,
            f"queries of {query.dtype} with rows of {key_cache.dtype}, the kernel takes one of "
            "float32, bfloat16, float16 for both",
        ),
        (
            query.shape[2] <= _WIDEST,
            f"heads of {query.shape[2]} values, a tile of 16 of them is cut for {_WIDEST}",
        ),
        (
            key_cache.shape[1] % rows == 0,
            f"blocks of {key_cache.shape[1]} rows, the kernel reads tiles of {rows}",
        ),
        (
            key_cache.stride(3) == value_cache.stride(3) == 1,
            "a cache with gaps inside a head, the kernel reads stride 1",
        ),
        (
            block_table.stride(1) == 1,
            f"block table with stride {block_table.stride(1)} along blocks, the kernel reads "
            "stride 1",
        ),
    )
