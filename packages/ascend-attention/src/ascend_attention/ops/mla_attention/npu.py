"""Latent attention by ``npu_fused_infer_attention_score_v2``, and all implementations' limits.

The operator takes lengths of the host: a graph of the device would keep those of its capture, so
there the kernel runs. Not run on hardware.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

from ascend_attention.ops.paged_attention.masks import causal_mask
from ascend_attention.ops.paged_attention.runs import equal_runs

_NAME = "npu_fused_infer_attention_score_v2"
_LATENT = 512
_ROPE = 64
_MOST_HEADS = 128
_MOST_TOKENS = 16
_MOST_REQUESTS = 4096
_FUSED_ROWS = (16, 128)
_CAUSAL = 3
_WIDEST = 512
_WIDEST_ROPE = 128
_ROWS = 16
# The compiler for A5 crashes on tiles of 16 rows of 16-bit values.
_ROWS_OF_HALVES = {"A5": 32}


def mla_attention(
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
    """See :func:`ascend_attention.ops.mla_attention.mla_attention`."""
    tokens = query_ends[-1]
    mask: dict[str, object] = {}
    if tokens > len(query_ends):
        mask = {"atten_mask": causal_mask(q_latent.device), "sparse_mode": _CAUSAL}
    attended, logarithm = torch.ops.npu.npu_fused_infer_attention_score_v2(
        q_latent[:tokens].contiguous(),
        latents,
        latents,
        query_rope=q_rope[:tokens].contiguous(),
        key_rope=ropes,
        block_table=block_table,
        actual_seq_qlen=list(query_ends),
        actual_seq_kvlen=list(seq_lens),
        num_query_heads=q_latent.shape[1],
        num_key_value_heads=1,
        softmax_scale=scale,
        input_layout="TND",
        block_size=latents.shape[1],
        return_softmax_lse=True,
        **mask,
    )
    logarithm = logarithm.squeeze(-1)
    behind = q_latent.shape[0] - tokens
    if behind:
        attended = torch.nn.functional.pad(attended, (0, 0, 0, 0, 0, behind))
        logarithm = torch.nn.functional.pad(logarithm, (0, 0, 0, behind), value=float("-inf"))
    return attended, logarithm


def supports_mla_attention(
    facts: DeviceFacts,
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
) -> Support:
    """A2 and A3, halves, rows of 512 + 64, lengths on the host, 1 to 16 tokens of every request.

    Heads in powers of two up to 128, blocks of 16 or 128 rows.
    """
    heads, page = q_latent.shape[1], latents.shape[1]
    widths = (q_latent.shape[2], q_rope.shape[2])
    counts = [run.length for run in equal_runs(query_ends)]
    requests = sum(run.sequences for run in equal_runs(query_ends))
    return first_refusal(
        (
            facts.family in ("A2", "A3"),
            f"device family {facts.family}, {_NAME} is documented for A2, A3",
        ),
        (
            q_latent.dtype in (torch.bfloat16, torch.float16) and latents.dtype == q_latent.dtype,
            f"queries of {q_latent.dtype} with latents of {latents.dtype}, {_NAME} takes one of "
            "torch.bfloat16, torch.float16 for both",
        ),
        (len(seq_lens) > 0, f"lengths that only the device knows, {_NAME} takes the host's"),
        (
            widths == (_LATENT, _ROPE),
            f"rows of {widths[0]} + {widths[1]}, {_NAME} takes {_LATENT} + {_ROPE}",
        ),
        (
            0 < heads <= _MOST_HEADS and heads & (heads - 1) == 0,
            f"{heads} heads, {_NAME} takes powers of two up to {_MOST_HEADS}",
        ),
        (
            page in _FUSED_ROWS,
            f"blocks of {page} rows, {_NAME} takes {' or '.join(map(str, _FUSED_ROWS))}",
        ),
        (
            requests == len(query_ends) <= _MOST_REQUESTS
            and max(counts, default=0) <= _MOST_TOKENS,
            # Steps differ, and every reason is logged once.
            f"a request of no or more tokens than {_MOST_TOKENS}, or more requests than "
            f"{_MOST_REQUESTS}, {_NAME} takes fewer",
        ),
        (
            block_table.dtype == torch.int32,
            f"a block table of {block_table.dtype}, {_NAME} takes torch.int32",
        ),
        (
            latents.numel() > 0 and all(x.is_contiguous() for x in (latents, ropes, block_table)),
            f"no rows, or rows or a table with gaps, {_NAME} needs them contiguous",
        ),
    )


def supports_mla_attention_triton(
    facts: DeviceFacts,
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
) -> Support:
    """One dtype throughout; latents of at most 512 values; blocks of a multiple of 16 rows.

    On A5 a multiple of 32 rows of 16-bit values.
    """
    rows = _ROWS_OF_HALVES.get(facts.family, _ROWS) if latents.element_size() == 2 else _ROWS
    return first_refusal(
        (
            q_latent.dtype in FLOATS and latents.dtype == q_latent.dtype,
            f"queries of {q_latent.dtype} with latents of {latents.dtype}, the kernel takes one "
            "of float32, bfloat16, float16 for both",
        ),
        (
            q_latent.shape[2] <= _WIDEST,
            f"latents of {q_latent.shape[2]} values, the accumulator of the matrix unit is cut "
            f"for {_WIDEST}",
        ),
        (
            q_rope.shape[2] <= _WIDEST_ROPE,
            f"{q_rope.shape[2]} rotated values, the kernel takes {_WIDEST_ROPE}",
        ),
        (
            latents.shape[1] % rows == 0,
            f"blocks of {latents.shape[1]} rows, the kernel reads tiles of {rows}",
        ),
        (
            all(x.stride(2) == 1 for x in (latents, ropes)),
            "a cache with gaps inside a row, the kernel reads stride 1",
        ),
        (
            block_table.stride(1) == 1,
            f"block table with stride {block_table.stride(1)} along blocks, the kernel reads "
            "stride 1",
        ),
    )
