"""The rotary embedding in Triton, alone and after an RMS norm."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_ops_core.devices import current_facts
from ascend_ops_core.kernels import as_int64
from ascend_ops_core.launch import launch
from ascend_ops_core.ops.rotary.kernels.tile import Tile, apart, per_head, together, token_axis


@triton.jit
def _turned(first, second, cos, sin):
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _rotate_tile(
    x_ptr,
    out_ptr,
    cos,
    sin,
    start,
    tokens,
    head,
    token_stride,
    head_stride,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
    AT_END: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    KEPT: tl.constexpr,
):
    """Rotate ``HEADS`` heads from ``head`` on of ``TOKENS`` tokens from ``start`` on."""
    t = token_axis(TOKENS, HEADS)
    cos = per_head(cos, HEADS)
    sin = per_head(sin, HEADS)
    rotated: tl.constexpr = WIDTH - 2 * PAIRS if AT_END else 0
    kept: tl.constexpr = 0 if AT_END else 2 * PAIRS
    h = head + tl.arange(0, HEADS)[None, :, None]
    here = (t < tokens - start) & (h < COUNT)
    x = x_ptr + start * token_stride + t * token_stride + h * head_stride
    out = out_ptr + start * (COUNT * WIDTH) + t * (COUNT * WIDTH) + h * WIDTH
    element = out_ptr.dtype.element_ty
    if INTERLEAVED:
        both = tl.arange(0, 2 * HALF)[None, None, :]
        mask = here & (both < 2 * PAIRS)
        pairs = tl.load(x + rotated + both, mask=mask, other=0.0)
        first, second = apart(pairs, TOKENS, HEADS, HALF)
        first, second = _turned(first.to(tl.float32), second.to(tl.float32), cos, sin)
        pairs = together(first, second, TOKENS, HEADS, HALF)
        tl.store(out + rotated + both, pairs.to(element), mask=mask)
    else:
        p = tl.arange(0, HALF)[None, None, :]
        mask = here & (p < PAIRS)
        first = tl.load(x + rotated + p, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(x + rotated + PAIRS + p, mask=mask, other=0.0).to(tl.float32)
        first, second = _turned(first, second, cos, sin)
        tl.store(out + rotated + p, first.to(element), mask=mask)
        tl.store(out + rotated + PAIRS + p, second.to(element), mask=mask)
    if KEPT > 0:
        k = tl.arange(0, KEPT)[None, None, :]
        mask = here & (k < WIDTH - 2 * PAIRS)
        tl.store(out + kept + k, tl.load(x + kept + k, mask=mask, other=0.0), mask=mask)


@triton.jit
def _rotary_kernel(
    q_ptr,
    q_out_ptr,
    k_ptr,
    k_out_ptr,
    cos_ptr,
    sin_ptr,
    tokens,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    programs,
    Q_COUNT: tl.constexpr,
    K_COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
    AT_END: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    INVERSE: tl.constexpr,
    TOKENS: tl.constexpr,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    KEPT: tl.constexpr,
):
    p = tl.arange(0, HALF)[None, :]
    t = tl.arange(0, TOKENS)[:, None]
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        start = as_int64(unit) * TOKENS
        mask = (t < tokens - start) & (p < PAIRS)
        angles = start * PAIRS + t * PAIRS + p
        cos = tl.load(cos_ptr + angles, mask=mask, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + angles, mask=mask, other=0.0).to(tl.float32)
        if INVERSE:
            sin = -sin
        for head in range(0, Q_COUNT, Q_HEADS):
            _rotate_tile(
                q_ptr,
                q_out_ptr,
                cos,
                sin,
                start,
                tokens,
                head,
                q_token_stride,
                q_head_stride,
                Q_COUNT,
                WIDTH,
                PAIRS,
                AT_END,
                INTERLEAVED,
                TOKENS,
                Q_HEADS,
                HALF,
                KEPT,
            )
        if K_COUNT > 0:
            for head in range(0, K_COUNT, K_HEADS):
                _rotate_tile(
                    k_ptr,
                    k_out_ptr,
                    cos,
                    sin,
                    start,
                    tokens,
                    head,
                    k_token_stride,
                    k_head_stride,
                    K_COUNT,
                    WIDTH,
                    PAIRS,
                    AT_END,
                    INTERLEAVED,
                    TOKENS,
                    K_HEADS,
                    HALF,
                    KEPT,
                )


@triton.jit
def _norm_rotary_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    cos_ptr,
    sin_ptr,
    tokens,
    token_stride,
    head_stride,
    eps,
    programs,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    KEPT: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    rotated: tl.constexpr = WIDTH - 2 * PAIRS
    element = out_ptr.dtype.element_ty
    t = token_axis(TOKENS, HEADS)
    both = tl.arange(0, 2 * HALF)[None, None, :]
    p = tl.arange(0, HALF)[None, None, :]
    k = tl.arange(0, KEPT)[None, None, :]
    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):
        start = as_int64(unit) * TOKENS
        angles = start * PAIRS + t * PAIRS + p
        mask = (t < tokens - start) & (p < PAIRS)
        cos = tl.load(cos_ptr + angles, mask=mask, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + angles, mask=mask, other=0.0).to(tl.float32)
        for head in range(0, COUNT, HEADS):
            h = head + tl.arange(0, HEADS)[None, :, None]
            here = (t < tokens - start) & (h < COUNT)
            x = x_ptr + start * token_stride + t * token_stride + h * head_stride
            out = out_ptr + start * (COUNT * WIDTH) + t * (COUNT * WIDTH) + h * WIDTH
            both_mask = here & (both < 2 * PAIRS)
            pairs = tl.load(x + rotated + both, mask=both_mask, other=0.0).to(tl.float32)
            squares = tl.sum(pairs * pairs, axis=2)
            kept_mask = here & (k < rotated)
            kept = tl.load(x + k, mask=kept_mask, other=0.0).to(tl.float32)
            squares += tl.sum(kept * kept, axis=2)
            scale = (1.0 / tl.sqrt(squares / WIDTH + eps))[:, :, None]
            pairs = pairs * scale
            kept = kept * scale
            if WEIGHTED:
                weight = weight_ptr + rotated + both
                pairs = pairs * tl.load(weight, mask=both < 2 * PAIRS, other=0.0).to(tl.float32)
                weight = tl.load(weight_ptr + k, mask=k < rotated, other=0.0)
                kept = kept * weight.to(tl.float32)
            tl.store(out + k, kept.to(element), mask=kept_mask)
            # The norm's result has the dtype of the heads before it is rotated.
            pairs = pairs.to(element).to(tl.float32)
            first, second = apart(pairs, TOKENS, HEADS, HALF)
            first, second = _turned(first, second, cos, sin)
            pairs = together(first, second, TOKENS, HEADS, HALF)
            tl.store(out + rotated + both, pairs.to(element), mask=both_mask)


def apply_rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    at_end: bool,
    inverse: bool,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.rotary.apply_rotary`."""
    return _rotate(x, None, cos, sin, interleaved, at_end, inverse)[0]


def apply_rotary_qk(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    at_end: bool,
    inverse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_ops_core.ops.rotary.apply_rotary_qk`."""
    return _rotate(q, k, cos, sin, interleaved, at_end, inverse)


def rms_norm_rotary(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.rotary.rms_norm_rotary`."""
    x, out = _rows(x), _empty(x)
    tile = Tile.of(current_facts(), x, cos.shape[1], 0, interleaved=True, normed=True)
    arguments = {
        "x_ptr": x,
        "weight_ptr": x if weight is None else weight,
        "out_ptr": out,
        "cos_ptr": cos.contiguous(),
        "sin_ptr": sin.contiguous(),
        "tokens": x.shape[0],
        "token_stride": x.stride(0),
        "head_stride": x.stride(1),
        "eps": eps,
        "programs": tile.programs,
    }
    constants = {
        "COUNT": x.shape[1],
        "WIDTH": x.shape[2],
        "PAIRS": cos.shape[1],
        "TOKENS": tile.tokens,
        "HEADS": tile.heads,
        "HALF": tile.half,
        "KEPT": max(tile.kept, 1),
        "WEIGHTED": weight is not None,
    }
    launch(_norm_rotary_kernel, tile.programs, arguments, constants)
    return out


def _rotate(
    q: torch.Tensor,
    k: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool,
    at_end: bool,
    inverse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    q, q_out = _rows(q), _empty(q)
    k_out = q_out
    if k is not None:
        k, k_out = _rows(k), _empty(k)
    facts, pairs = current_facts(), cos.shape[1]
    tile = Tile.of(facts, q, pairs, 0 if k is None else k.shape[1], interleaved=interleaved)
    second = q if k is None else k
    arguments = {
        "q_ptr": q,
        "q_out_ptr": q_out,
        "k_ptr": second,
        "k_out_ptr": k_out,
        "cos_ptr": cos.contiguous(),
        "sin_ptr": sin.contiguous(),
        "tokens": q.shape[0],
        "q_token_stride": q.stride(0),
        "q_head_stride": q.stride(1),
        "k_token_stride": second.stride(0),
        "k_head_stride": second.stride(1),
        "programs": tile.programs,
    }
    constants = {
        "Q_COUNT": q.shape[1],
        "K_COUNT": 0 if k is None else k.shape[1],
        "WIDTH": q.shape[2],
        "PAIRS": pairs,
        "AT_END": at_end,
        "INTERLEAVED": interleaved,
        "INVERSE": inverse,
        "TOKENS": tile.tokens,
        "Q_HEADS": tile.heads,
        "K_HEADS": tile.second_heads,
        "HALF": tile.half,
        "KEPT": tile.kept,
    }
    launch(_rotary_kernel, tile.programs, arguments, constants)
    return q_out, k_out


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _empty(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)
