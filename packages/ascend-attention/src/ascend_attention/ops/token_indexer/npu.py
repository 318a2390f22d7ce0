"""The selection by torch_npu, and the limits of every NPU implementation.

``npu_lightning_indexer`` takes float keys, ``npu_quant_lightning_indexer`` keys of eight bits. Both
tell what a query sees from the lengths of its request, and state no order among equal scores. Not
run on hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

from ascend_attention.ops.indexer.npu import supports_indexer_scores_triton

_HEAD_DIM = 128
_MOST_HEADS = 64
_MOST_ROWS = 1024
_COUNTS = (*range(1, 2049), *range(3072, 8193, 1024))
_CAUSAL = 3
_PER_TOKEN_HEAD = 0


def select_tokens(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    query_scale: torch.Tensor | None,
    key_scale: torch.Tensor | None,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    top_k: int,
    most_tokens: int,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.token_indexer.select_tokens`.

    Head weights are rounded to the 16-bit dtype that the operator takes.
    """
    if key_scale is None or query_scale is None:
        chosen = torch.ops.npu.npu_lightning_indexer(
            query,
            key_cache.unsqueeze(2),
            head_weights.to(query.dtype),
            actual_seq_lengths_query=query_ends,
            actual_seq_lengths_key=seq_lens,
            block_table=block_table,
            layout_query="TND",
            layout_key="PA_BSND",
            sparse_count=top_k,
            sparse_mode=_CAUSAL,
        )[0]
    else:
        chosen = torch.ops.npu.npu_quant_lightning_indexer(
            query,
            key_cache.unsqueeze(2),
            head_weights.to(torch.float16),
            query_scale.to(key_scale.dtype),
            key_scale.unsqueeze(2),
            _PER_TOKEN_HEAD,
            _PER_TOKEN_HEAD,
            actual_seq_lengths_query=query_ends,
            actual_seq_lengths_key=seq_lens,
            block_table=block_table,
            layout_query="TND",
            layout_key="PA_BSND",
            sparse_count=top_k,
            sparse_mode=_CAUSAL,
        )
    # What the operators write for queries behind the last request is not documented.
    real = torch.arange(query.shape[0], device=query.device) < query_ends[-1]
    return torch.where(real.unsqueeze(-1), chosen.squeeze(1), -1)


def supports_select_tokens(
    facts: DeviceFacts,
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    query_scale: torch.Tensor | None,
    key_scale: torch.Tensor | None,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    top_k: int,
    most_tokens: int,
) -> Support:
    """bfloat16 or float16 keys, or those that the product has of int8 and float8_e4m3fn.

    The widths of heads and blocks are those of vllm-ascend's kernels, which torch_npu's
    documentation does not state.
    """
    page = key_cache.shape[1]
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
    scales: tuple[torch.dtype, ...] = ()
    name = "npu_lightning_indexer"
    if key_scale is not None:
        name = "npu_quant_lightning_indexer"
        dtypes = (torch.float8_e4m3fn,) if facts.family == "A5" else (torch.int8,)
        scales = (torch.float16, torch.float32) if facts.family == "A5" else (torch.float16,)
    return first_refusal(
        (
            key_scale is None or facts.family in ("A3", "A5"),
            f"{facts.family}, {name} is documented for A3 and A5",
        ),
        (
            key_cache.dtype in dtypes,
            f"keys of {key_cache.dtype}, {name} takes {', '.join(map(str, dtypes))}",
        ),
        (
            key_scale is None or key_scale.dtype in scales,
            f"scales of {None if key_scale is None else key_scale.dtype}, {name} takes "
            f"{', '.join(map(str, scales))}",
        ),
        (query.numel() > 0 and key_cache.numel() > 0, f"no queries or no keys, {name} needs some"),
        (block_table.numel() > 0, f"an empty block table, {name} needs one"),
        (
            query.shape[1] <= _MOST_HEADS,
            f"{query.shape[1]} heads, {name} takes {_MOST_HEADS}",
        ),
        (query.shape[2] == _HEAD_DIM, f"heads of {query.shape[2]}, {name} takes {_HEAD_DIM}"),
        (
            page % 16 == 0 and page <= _MOST_ROWS,
            f"blocks of {page} rows, {name} takes multiples of 16 up to {_MOST_ROWS}",
        ),
        (
            top_k in _COUNTS,
            f"top_k={top_k}, {name} takes 1 to 2048 and multiples of 1024 up to 8192",
        ),
        (
            query.is_contiguous()
            and key_cache.is_contiguous()
            and block_table.is_contiguous()
            and (key_scale is None or key_scale.is_contiguous()),
            f"queries, keys, scales or a table with gaps, {name} needs them contiguous",
        ),
    )


def supports_select_tokens_triton(
    facts: DeviceFacts,
    query: torch.Tensor,
    head_weights: torch.Tensor,
    key_cache: torch.Tensor,
    query_scale: torch.Tensor | None,
    key_scale: torch.Tensor | None,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    top_k: int,
    most_tokens: int,
) -> Support:
    """As the scores of the indexer."""
    return supports_indexer_scores_triton(
        facts,
        query,
        head_weights,
        key_cache,
        key_scale,
        block_table,
        query_ends,
        seq_lens,
        most_tokens,
    )
