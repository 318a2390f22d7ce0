"""Hyper-connections by torch_npu, and the limits of every NPU implementation.

Not run on hardware; checked against torch_npu's schemas.
"""

from __future__ import annotations

import torch

from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.ops.norm.npu import takes_float
from ascend_ops_core.support import Support, first_refusal

_STREAMS = (4, 6, 8)
_MOST_ITERATIONS = 100


def hc_pre(
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    sinkhorn_iters: int,
    hc_eps: float,
    norm_eps: float,
    norm_weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``npu_mhc_pre``, ``npu_mhc_sinkhorn`` and the norm; see the operator of that name."""
    collapsed, post, logits, *_ = torch.ops.npu.npu_mhc_pre(
        streams, fn, scale, base, norm_eps=norm_eps, hc_eps=hc_eps
    )
    comb = sinkhorn(logits, sinkhorn_iters, hc_eps)
    return rms_norm(collapsed, norm_weight, norm_eps), post, comb


def supports_hc_pre(
    facts: DeviceFacts,
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    sinkhorn_iters: int,
    hc_eps: float,
    norm_eps: float,
    norm_weight: torch.Tensor,
) -> Support:
    """A5; float16 or bfloat16, 4, 6 or 8 streams, float32 weights (torch_npu's documentation)."""
    weights = {"fn": fn, "scale": scale, "base": base}
    return first_refusal(
        *_of_a5(facts, "npu_mhc_pre", streams),
        *(
            (value.dtype == torch.float32, f"{name} of {value.dtype}, npu_mhc_pre takes float32")
            for name, value in weights.items()
        ),
        _iterations(sinkhorn_iters),
    )


def hc_post(
    output: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    """``npu_mhc_post``; see :func:`ascend_ops_core.ops.hyper_connection.hc_post`."""
    result: torch.Tensor = torch.ops.npu.npu_mhc_post(streams, comb, output, post)
    return result


def supports_hc_post(
    facts: DeviceFacts,
    output: torch.Tensor,
    streams: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
) -> Support:
    """A5; float16 or bfloat16, 4, 6 or 8 streams (torch_npu's documentation)."""
    return first_refusal(
        *_of_a5(facts, "npu_mhc_post", streams),
        (
            output.dtype == streams.dtype,
            f"output of {output.dtype} beside streams of {streams.dtype}, npu_mhc_post takes one "
            "dtype",
        ),
    )


def sinkhorn(logits: torch.Tensor, iters: int, eps: float) -> torch.Tensor:
    """``npu_mhc_sinkhorn``; see :func:`ascend_ops_core.ops.hyper_connection.sinkhorn`."""
    result: torch.Tensor = torch.ops.npu.npu_mhc_sinkhorn(logits, eps=eps, num_iters=iters)[0]
    return result


def supports_sinkhorn(facts: DeviceFacts, logits: torch.Tensor, iters: int, eps: float) -> Support:
    """A5; float32 [T, n, n] or [B, S, n, n], n 4, 6 or 8 (torch_npu's documentation)."""
    op = "npu_mhc_sinkhorn"
    n = logits.shape[-1]
    return first_refusal(
        (facts.family == "A5", f"{facts.family}, {op} is documented for A5"),
        (logits.dtype == torch.float32, f"logits of {logits.dtype}, {op} takes float32"),
        (logits.dim() in (3, 4), f"logits of {logits.dim()} dimensions, {op} takes 3 or 4"),
        (n in _STREAMS, f"{n} streams, {op} takes {_STREAMS}"),
        _iterations(iters),
        (logits.numel() > 0, "logits are empty"),
    )


def supports_hc_pre_triton(
    facts: DeviceFacts,
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    sinkhorn_iters: int,
    hc_eps: float,
    norm_eps: float,
    norm_weight: torch.Tensor,
) -> Support:
    """Any float dtype, any number of streams."""
    return takes_float(streams)


def supports_hc_post_triton(
    facts: DeviceFacts,
    output: torch.Tensor,
    streams: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
) -> Support:
    """Any float dtype, any number of streams."""
    return takes_float(streams)


def supports_hc_head_triton(
    facts: DeviceFacts,
    streams: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    hc_eps: float,
    norm_eps: float,
) -> Support:
    """Any float dtype, any number of streams."""
    return takes_float(streams)


def supports_sinkhorn_triton(
    facts: DeviceFacts, logits: torch.Tensor, iters: int, eps: float
) -> Support:
    """float32."""
    return first_refusal(
        (logits.dtype == torch.float32, f"logits of {logits.dtype}, the kernel takes float32")
    )


def _of_a5(facts: DeviceFacts, op: str, streams: torch.Tensor) -> tuple[tuple[bool, str], ...]:
    n = streams.shape[1]
    return (
        (facts.family == "A5", f"{facts.family}, {op} is documented for A5"),
        (
            streams.dtype in (torch.float16, torch.bfloat16),
            f"streams of {streams.dtype}, {op} takes float16, bfloat16",
        ),
        (n in _STREAMS, f"{n} streams, {op} takes {_STREAMS}"),
        (streams.numel() > 0, "streams are empty"),
    )


def _iterations(iters: int) -> tuple[bool, str]:
    return (
        1 <= iters <= _MOST_ITERATIONS,
        f"{iters} iterations, npu_mhc_sinkhorn takes 1 to {_MOST_ITERATIONS}",
    )
