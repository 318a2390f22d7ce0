"""Manifold-constrained hyper-connections, on A5 only."""

from __future__ import annotations

import torch

from ascend_ops_core.testing.npu_references.limits import (
    HALVES,
    require,
    require_dtype,
    require_family,
    require_filled,
    require_rank,
)
from ascend_ops_core.testing.npu_references.registry import reference

_FLOAT = (torch.float32,)


@reference("npu_mhc_pre", documented=("A5",))
def npu_mhc_pre(
    x: torch.Tensor,
    phi: torch.Tensor,
    alpha: torch.Tensor,
    bias: torch.Tensor,
    *,
    gamma: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
    hc_eps: float = 1e-6,
    out_flag: int = 0,
    inner_precise: int = 0,
) -> tuple[torch.Tensor, ...]:
    """The input of a layer from n residual streams, and the maps that spread its output.

    Args: x float16 or bfloat16 [T, n, D] or [B, S, n, D]; phi float32 [n n + 2 n, n D]; alpha
    float32[3]; bias float32[n n + 2 n]; gamma float32 [n, D]. Returns h_in [..., D], h_post [...,
    n], h_res [..., n, n] before Sinkhorn, the inverse RMS [...], the product with phi, and h_pre.

    Assumed: the formulas of the paper (arXiv 2512.24880), which the documentation does not give:
    ``mix = (x * gamma) @ phi^T``; ``h_pre = sigmoid(a0 mix / rms + b) + hc_eps``; ``h_post = 2
    sigmoid(a1 mix / rms + b)``; ``h_res = a2 mix / rms + b``; their order in phi is pre, post, res.
    The last three results are computed whatever out_flag is. alpha of 2 is not modelled.
    """
    op = "npu_mhc_pre"
    require_family(op, "A5")
    require_dtype(op, "x", x, HALVES)
    for name, one in (("phi", phi), ("alpha", alpha), ("bias", bias), ("gamma", gamma)):
        require_dtype(op, name, one, _FLOAT)
    require_rank(op, "x", x, 3, 4)
    require_filled(op, x=x, phi=phi, bias=bias)
    require(inner_precise == 0, op, f"inner_precise={inner_precise}", "0 (float32) is modelled")
    n, d = x.shape[-2:]
    outputs = n * n + 2 * n
    for name, one, shape in (
        ("phi", phi, (outputs, n * d)),
        ("alpha", alpha, (3,)),
        ("bias", bias, (outputs,)),
        ("gamma", gamma, (n, d)),
    ):
        if one is not None:
            require(tuple(one.shape) == shape, op, f"{name} {list(one.shape)}", f"{list(shape)}")
    wide = x.float()
    inverse_rms = torch.rsqrt(wide.square().mean((-2, -1)) + norm_eps)
    mix = (wide if gamma is None else wide * gamma).flatten(-2) @ phi.T
    pre, post, res = (mix * inverse_rms[..., None]).split([n, n, n * n], -1)
    pre_bias, post_bias, res_bias = bias.split([n, n, n * n])
    h_pre = torch.sigmoid(alpha[0] * pre + pre_bias) + hc_eps
    h_post = 2 * torch.sigmoid(alpha[1] * post + post_bias)
    h_res = (alpha[2] * res + res_bias).unflatten(-1, (n, n))
    h_in = (h_pre[..., None] * wide).sum(-2).to(x.dtype)
    return h_in, h_post, h_res, inverse_rms, mix, h_pre


@reference("npu_mhc_sinkhorn", documented=("A5",))
def npu_mhc_sinkhorn(
    x: torch.Tensor, *, eps: float = 1e-6, num_iters: int = 20, out_flag: int = 0
) -> tuple[torch.Tensor, None, None]:
    """Makes float32 [..., n, n] nearly doubly stochastic.

    Limits: [T, n, n] or [B, S, n, n]; n 4, 6 or 8; 1 to 100 iterations.

    Assumed: DeepSeek-V4's order: softmax of the rows plus eps, columns divided by their sum plus
    eps, then rows and columns in turn, num_iters times in all. Intermediate results (out_flag) are
    not modelled.
    """
    op = "npu_mhc_sinkhorn"
    require_family(op, "A5")
    require_dtype(op, "x", x, _FLOAT)
    require_rank(op, "x", x, 3, 4)
    n = x.shape[-1]
    require(n in (4, 6, 8) and x.shape[-2] == n, op, f"x {list(x.shape)}", "n is 4, 6 or 8")
    require(1 <= num_iters <= 100, op, f"num_iters={num_iters}", "1 to 100")
    require(out_flag == 0, op, f"out_flag={out_flag}", "0 is modelled")
    y = x.softmax(-1) + eps
    y = y / (y.sum(-2, keepdim=True) + eps)
    for _ in range(num_iters - 1):
        y = y / (y.sum(-1, keepdim=True) + eps)
        y = y / (y.sum(-2, keepdim=True) + eps)
    return y, None, None


@reference("npu_mhc_post", documented=("A5",))
def npu_mhc_post(
    x: torch.Tensor, h_res: torch.Tensor | None, h_out: torch.Tensor, h_post: torch.Tensor
) -> torch.Tensor:
    """``h_res^T x + h_post (outer) h_out``, the streams after a layer; without h_res, ``x + ...``.

    x float16 or bfloat16 [T, n, D] or [B, S, n, D]; h_res float32 [..., n, n]; h_out as x [..., D];
    h_post float32 [..., n].
    """
    op = "npu_mhc_post"
    require_family(op, "A5")
    require_dtype(op, "x", x, HALVES)
    require_dtype(op, "h_out", h_out, (x.dtype,))
    require_dtype(op, "h_res", h_res, _FLOAT)
    require_dtype(op, "h_post", h_post, _FLOAT)
    require_rank(op, "x", x, 3, 4)
    n = x.shape[-2]
    for name, one, shape in (
        ("h_res", h_res, (*x.shape[:-1], n)),
        ("h_out", h_out, (*x.shape[:-2], x.shape[-1])),
        ("h_post", h_post, x.shape[:-1]),
    ):
        if one is not None:
            require(tuple(one.shape) == tuple(shape), op, f"{name} {list(one.shape)}", f"{shape}")
    wide = x.float()
    kept = wide if h_res is None else h_res.transpose(-1, -2) @ wide
    return (kept + h_post[..., None] * h_out.float()[..., None, :]).to(x.dtype)
