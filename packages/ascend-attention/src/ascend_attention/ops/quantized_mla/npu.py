"""Quantised MLA by ``npu_kv_quant_sparse_flash_attention``, and the limits of all implementations.

Not run on hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

from ascend_attention.ops.quantized_mla.layout import GROUP

_LATENT = 512
_ROPE = 64
_MOST_HEADS = 128
_MOST_ROWS = 1024
_CAUSAL = 3
_MLA_ABSORB = 2
_PER_TILE = 2
_COMBINED = 1


def quantized_sparse_mla(
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """See :func:`ascend_attention.ops.quantized_mla.quantized_sparse_mla`."""
    rows = cache.unsqueeze(2)
    out = torch.ops.npu.npu_kv_quant_sparse_flash_attention(
        torch.cat((query_latent, query_rope), dim=-1),
        rows,
        rows,
        selected.unsqueeze(1),
        scale,
        _PER_TILE,
        _PER_TILE,
        block_table=block_table,
        actual_seq_lengths_query=query_ends,
        actual_seq_lengths_kv=seq_lens,
        sparse_block_size=1,
        layout_query="TND",
        layout_kv="PA_BSND",
        sparse_mode=_CAUSAL,
        attention_mode=_MLA_ABSORB,
        quant_scale_repo_mode=_COMBINED,
        tile_size=GROUP,
        rope_head_dim=query_rope.shape[2],
    )
    # What the operator writes for queries without any token is not documented.
    return torch.where((selected[:, 0] >= 0)[:, None, None], out, 0.0)


def supports_quantized_sparse_mla(
    facts: DeviceFacts,
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> Support:
    """bfloat16 queries, rows of 512 + 64, heads in powers of two, nothing with gaps.

    Widths, heads and blocks are the limits of vllm-ascend's kernel, which torch_npu's
    documentation does not state.
    """
    name = "npu_kv_quant_sparse_flash_attention"
    heads, page = query_latent.shape[1], cache.shape[1]
    widths = (query_latent.shape[2], query_rope.shape[2])
    return first_refusal(
        (
            query_latent.dtype == torch.bfloat16,
            f"queries of {query_latent.dtype}, {name} takes torch.bfloat16",
        ),
        (
            query_latent.numel() > 0 and cache.numel() > 0 and selected.numel() > 0,
            f"no queries, rows or selected tokens, {name} needs some",
        ),
        (block_table.numel() > 0, f"an empty block table, {name} needs one"),
        (
            widths == (_LATENT, _ROPE),
            f"rows of {widths[0]} + {widths[1]}, {name} takes {_LATENT} + {_ROPE}",
        ),
        (
            0 < heads <= _MOST_HEADS and heads & (heads - 1) == 0,
            f"{heads} heads, {name} takes powers of two up to {_MOST_HEADS}",
        ),
        (
            page % 16 == 0 and page <= _MOST_ROWS,
            f"blocks of {page} rows, {name} takes multiples of 16 up to {_MOST_ROWS}",
        ),
        (
            all(one.is_contiguous() for one in (cache, selected, block_table)),
            f"rows, tokens or a table with gaps, {name} needs them contiguous",
        ),
    )


def supports_quantized_sparse_mla_triton(
    facts: DeviceFacts,
    query_latent: torch.Tensor,
    query_rope: torch.Tensor,
    cache: torch.Tensor,
    selected: torch.Tensor,
    block_table: torch.Tensor,
    query_ends: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> Support:
    """Latents of at most 512 values and rotated parts of at most 128."""
    return first_refusal(
        (
            query_latent.shape[2] <= _LATENT,
            f"latents of {query_latent.shape[2]} values, the accumulator of the matrix unit is "
            f"cut for {_LATENT}",
        ),
        (
            query_rope.shape[2] <= 2 * _ROPE,
            f"rotated parts of {query_rope.shape[2]} values, the kernel takes {2 * _ROPE}",
        ),
    )


def supports_quantize_mla_rows_triton(
    facts: DeviceFacts,
    cache: torch.Tensor,
    latent: torch.Tensor,
    rope: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
) -> Support:
    """Any float; latents of at most 1024 values."""
    return first_refusal(
        (latent.dtype in FLOATS, f"latents of {latent.dtype}, the kernel takes float"),
        (
            latent.shape[1] <= 2 * _LATENT,
            f"latents of {latent.shape[1]} values, the kernel takes {2 * _LATENT}",
        ),
    )
