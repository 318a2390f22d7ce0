"""The prologue of latent attention by ``npu_mla_prolog_v3``, and its limits.

The documentation of torch_npu gives the normed latent of queries a flag and calls the output
reserved; that of CANN's operator and the wheels' meta kernels have it. It lists rows from 0 for the
cache; -1, with which CANN's sources write nothing, stands for padding here. Cosines and sines are
rounded to bfloat16. Not run on hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.support import Support, first_refusal

from ascend_attention.ops.mla_cache.npu import both_halves, rows_of

_NAME = "npu_mla_prolog_v3"
_HIDDEN = (6144, 7168, 7680)
_Q_RANK = 1536
_RANK = 512
_NOPE = 128
_ROTARY = 64
_MOST_HEADS = 128
_ROWS = (16, 128)
_MOST_TOKENS = 1_048_576


def mla_prolog(
    hidden: torch.Tensor,
    down_q: torch.Tensor,
    up_q: torch.Tensor,
    up_k: torch.Tensor,
    down_kv: torch.Tensor,
    q_norm: torch.Tensor,
    kv_norm: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`ascend_attention.ops.mla_prolog.mla_prolog`."""
    q_latent, q_rope, _, q_input, _ = torch.ops.npu.npu_mla_prolog_v3(
        hidden,
        down_q,
        up_q,
        up_k,
        down_kv,
        q_norm,
        kv_norm,
        both_halves(sin, hidden.dtype),
        both_halves(cos, hidden.dtype),
        latents.unsqueeze(2),
        ropes.unsqueeze(2),
        cache_index=rows_of(block, offset, latents.shape[1]),
        rmsnorm_epsilon_cq=eps,
        rmsnorm_epsilon_ckv=eps,
        cache_mode="PA_BSND",
        query_norm_flag=True,
    )
    return q_latent, q_rope, q_input


def supports_mla_prolog(
    facts: DeviceFacts,
    hidden: torch.Tensor,
    down_q: torch.Tensor,
    up_q: torch.Tensor,
    up_k: torch.Tensor,
    down_kv: torch.Tensor,
    q_norm: torch.Tensor,
    kv_norm: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
) -> Support:
    """A2 and A3, bfloat16, sizes of DeepSeek-V3 with 1 to 128 heads, blocks of 16 or 128 rows."""
    heads, nope, rank = up_k.shape
    tokens, size = hidden.shape
    q_rank, rotary, rows = down_q.shape[1], 2 * cos.shape[1], latents.shape[1]
    return first_refusal(
        (
            facts.family in ("A2", "A3"),
            f"device family {facts.family}, {_NAME} is documented for A2, A3",
        ),
        (
            hidden.dtype == torch.bfloat16,
            f"tokens of {hidden.dtype}, {_NAME} takes torch.bfloat16 where nothing is quantised",
        ),
        (
            size in _HIDDEN,
            f"a hidden size of {size}, {_NAME} takes {', '.join(map(str, _HIDDEN))}",
        ),
        (
            (q_rank, rank) == (_Q_RANK, _RANK),
            f"latents of {q_rank} and {rank}, {_NAME} takes {_Q_RANK} and {_RANK}",
        ),
        (
            (nope, rotary) == (_NOPE, _ROTARY),
            f"heads of {nope} + {rotary}, {_NAME} takes {_NOPE} + {_ROTARY}",
        ),
        (
            0 < heads <= _MOST_HEADS and heads & (heads - 1) == 0,
            f"{heads} heads, {_NAME} takes powers of two up to {_MOST_HEADS}",
        ),
        (
            rows in _ROWS,
            f"blocks of {rows} rows, {_NAME} takes {' or '.join(map(str, _ROWS))}",
        ),
        (
            # Steps differ, and every reason is logged once.
            tokens <= _MOST_TOKENS,
            f"more tokens than {_MOST_TOKENS}, {_NAME} takes fewer",
        ),
        (
            all(x.is_contiguous() for x in (hidden, up_k, latents, ropes)),
            f"tokens, weights or caches with gaps, {_NAME} needs them contiguous",
        ),
    )
