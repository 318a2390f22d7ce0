"""Lets code that calls torch's own operators run the batch-invariant ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ascend_ops_core.ops.batch_invariant import (
    addmm_batch_invariant,
    bmm_batch_invariant,
    mean_batch_invariant,
    mm_batch_invariant,
    softmax_batch_invariant,
)

_enabled: dict[str, torch.library.Library] = {}


def enable_batch_invariant_mode(dispatch_key: str = "PrivateUse1") -> None:
    """Put the batch-invariant operators in the place of torch's, in the whole process.

    Replaced are ``mm``, ``bmm``, ``addmm``, ``mean`` over one axis and ``softmax``; ``matmul`` and
    ``linear`` are made of those. Enabling twice is enabling once.

    Args:
        dispatch_key: the device kind, torch's name of the NPU by default.
    """
    if dispatch_key in _enabled:
        return
    library = torch.library.Library("aten", "IMPL")
    for name, call in _REPLACED.items():
        # torch warns of each operator that had an implementation, and here that is meant.
        library.impl(name, call, dispatch_key, allow_override=True)
    _enabled[dispatch_key] = library


def disable_batch_invariant_mode(dispatch_key: str = "PrivateUse1") -> None:
    """Give torch its own operators back; does nothing if they are in place."""
    library = _enabled.pop(dispatch_key, None)
    if library is not None:
        library._destroy()


def batch_invariant_mode_enabled(dispatch_key: str = "PrivateUse1") -> bool:
    """Whether torch's operators are replaced."""
    return dispatch_key in _enabled


@contextmanager
def batch_invariant_mode(dispatch_key: str = "PrivateUse1") -> Iterator[None]:
    """Replace torch's operators inside this block, in all threads."""
    before = batch_invariant_mode_enabled(dispatch_key)
    enable_batch_invariant_mode(dispatch_key)
    try:
        yield
    finally:
        if not before:
            disable_batch_invariant_mode(dispatch_key)


def _addmm(
    added: torch.Tensor, x: torch.Tensor, y: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    if added.dim() < 2 and added.numel() == 1:
        added = added.expand(y.shape[1])
    elif added.dim() == 2 and added.shape[1] == 1:
        added = added.expand(added.shape[0], y.shape[1])
    return addmm_batch_invariant(added, x, y, beta=beta, alpha=alpha)


def _mean(
    x: torch.Tensor,
    dim: list[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Mean over some axes; the axes are averaged one after the other, the last one first."""
    x = x if dtype is None else x.to(dtype)
    axes = sorted({d % x.dim() for d in (dim or range(x.dim()))}, reverse=True)
    kept, x_f32 = x.dtype, x if len(axes) == 1 else x.float()
    for axis in axes:
        x_f32 = mean_batch_invariant(x_f32, axis, keepdim=keepdim)
    return x_f32.to(kept)


def _softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    return softmax_batch_invariant(x.float() if half_to_float else x, dim)


_REPLACED: dict[str, Callable[..., Any]] = {
    "mm": mm_batch_invariant,
    "bmm": bmm_batch_invariant,
    "addmm": _addmm,
    "mean.dim": _mean,
    "_softmax": _softmax,
}
