"""Activations."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ascend_ops_core.testing.npu_references.limits import (
    FLOATS,
    family,
    require,
    require_contiguous,
    require_dtype,
    require_rank,
)
from ascend_ops_core.testing.npu_references.registry import reference


@reference("npu_swiglu", documented=("A2",))
def npu_swiglu(self: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """``silu(a) * b`` with ``a, b`` the halves of ``self`` along ``dim``.

    Limits: 1 to 8 dimensions; float32, float16, bfloat16.

    Assumed: ``dim`` must be even, and nothing is rounded between.
    """
    op = "npu_swiglu"
    require_rank(op, "self", self, 1, 8)
    require_dtype(op, "self", self, FLOATS)
    a, b = halves(op, self, dim)
    return (F.silu(a.float()) * b.float()).to(self.dtype)


@reference("npu_clipped_swiglu", documented=("A2", "A3"))
def npu_clipped_swiglu(
    x: torch.Tensor,
    *,
    group_index: torch.Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> torch.Tensor:
    """``a * sigmoid(alpha a) * (b + bias)`` with ``a <= limit`` and ``-limit <= b <= limit``.

    ``a, b`` are even and odd elements along ``dim`` if ``interleaved``, else its halves. With
    ``group_index`` (int64[groups], tokens of each) only the first ``sum(group_index)`` rows count.

    Limits: float16, bfloat16, float32; contiguous; at least 2 dimensions; ``dim`` even.

    Assumed: rows beyond the groups are undefined, here zero.
    """
    op = "npu_clipped_swiglu"
    require_dtype(op, "x", x, FLOATS)
    require_contiguous(op, x=x)
    require_rank(op, "x", x, 2, 8)
    require_dtype(op, "group_index", group_index, (torch.int64,))
    if interleaved:
        require(x.shape[dim] % 2 == 0, op, f"size {x.shape[dim]} along dim", "it must be even")
        moved = x.movedim(dim, -1)
        a, b = moved[..., ::2].movedim(-1, dim), moved[..., 1::2].movedim(-1, dim)
    else:
        a, b = halves(op, x, dim)
    a, b = a.float().clamp(max=limit), b.float().clamp(min=-limit, max=limit)
    y = (a * torch.sigmoid(alpha * a) * (b + bias)).to(x.dtype)
    if group_index is not None:
        rows = y.contiguous().view(-1, *y.shape[dim % y.dim() :])
        rows[int(group_index.sum()) :] = 0
        y = rows.view(y.shape)
    return y


@reference("npu_fast_gelu", documented=("A2", "A3"))
def npu_fast_gelu(self: torch.Tensor) -> torch.Tensor:
    """``x / (1 + exp(-1.702 x))``, the documented formula of A2 and A3.

    Limits: at most 8 dimensions; float16, float32, bfloat16 (310P: no bfloat16).

    Assumed: A5 computes as A2 and A3.
    """
    op = "npu_fast_gelu"
    require_rank(op, "self", self, 0, 8)
    allowed = (torch.float16, torch.float32) if family() == "310P" else FLOATS
    require_dtype(op, "self", self, allowed)
    wide = self.float()
    return (wide * torch.sigmoid(1.702 * wide)).to(self.dtype)


@reference("npu_gelu", documented=())
def npu_gelu(self: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """``torch.nn.functional.gelu``.

    Assumed: all of it, the operator being undocumented; ``approximate`` is "none" or "tanh".
    """
    op = "npu_gelu"
    require_dtype(op, "self", self, FLOATS)
    require(
        approximate in ("none", "tanh"),
        op,
        f"approximate={approximate!r}",
        "it takes 'none' and 'tanh'",
    )
    return F.gelu(self.float(), approximate=approximate).to(self.dtype)


@reference("npu_geglu", documented=("A2",))
def npu_geglu(
    self: torch.Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """``gelu`` of one half of ``self`` along ``dim`` times the other half, and that ``gelu``.

    Limits: float32, float16, bfloat16. ``approximate`` 0 is exact, 1 is tanh.

    Assumed: the right half is activated unless ``activate_left``, as its name says.
    """
    op = "npu_geglu"
    require_dtype(op, "self", self, FLOATS)
    require(approximate in (0, 1), op, f"approximate={approximate}", "it takes 0 and 1")
    left, right = halves(op, self, dim)
    if not activate_left:
        left, right = right, left
    gelu = F.gelu(left.float(), approximate="tanh" if approximate else "none")
    return (gelu * right.float()).to(self.dtype), gelu.to(self.dtype)


def halves(op: str, x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two halves of ``x`` along ``dim``, refusing an odd size."""
    require(-x.dim() <= dim < x.dim(), op, f"dim={dim}", f"x has {x.dim()} dimensions")
    require(x.shape[dim] % 2 == 0, op, f"size {x.shape[dim]} along dim {dim}", "it must be even")
    left, right = x.chunk(2, dim)
    return left, right
