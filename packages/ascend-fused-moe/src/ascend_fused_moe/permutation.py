"""Rows once for each of their experts, in the order of experts, and back."""

from __future__ import annotations

import torch

__all__ = ["permute", "sorted_rows", "unpermute"]


def permute(
    x: torch.Tensor, ids: torch.Tensor, experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Copy each row once for each of its choices; the rows of one expert keep their order.

    Args:
        x: ``[N, H]``, or ``[N]``.
        ids: ``[N, k]`` int64; an id outside ``[0, experts)`` is no choice.
        experts: number of experts.

    Returns:
        Rows ``[R, H]`` in the order of experts, for each choice its row or -1, ``[N, k]``, and the
        rows of each expert, ``[experts]``. On a CPU ``R`` is the number of choices, on a device,
        where that would have to be waited for, ``N * k``; the rows behind hold anything.
    """
    order, index, counts = sorted_rows(ids, experts)
    if x.device.type == "cpu":
        order = order[: int(counts.sum())]
    return x[order // max(ids.shape[1], 1)], index, counts


def sorted_rows(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Choices in the order of experts, found without a look at them on the host.

    Args:
        ids: ``[N, k]`` int64; an id outside ``[0, experts)`` is no choice.
        experts: number of experts.

    Returns:
        The choice (``token * k + number``) that each row is made of, ``[N * k]``, those that are
        none last; for each choice its row or -1, ``[N, k]``; and the rows of each expert.
    """
    flat = ids.flatten()
    valid = (flat >= 0) & (flat < experts)
    key = torch.where(valid, flat, experts)
    counts = torch.zeros(experts + 1, dtype=torch.int64, device=ids.device)
    counts = counts.scatter_add_(0, key, torch.ones_like(key))[:experts]
    order = key.argsort(stable=True)
    index = torch.empty_like(order)
    index[order] = torch.arange(order.numel(), device=ids.device)
    return order, torch.where(valid, index, -1).view(ids.shape), counts


def unpermute(rows: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum over each row's choices, in float32 and in the order of the choices.

    Args:
        rows: ``[R, H]``.
        index: ``[N, k]`` int64: the row of each choice, or -1.
        weights: ``[N, k]`` float32.

    Returns:
        ``[N, H]`` in the dtype of ``rows``; a row without choices is 0.
    """
    total = torch.zeros(index.shape[0], rows.shape[1], dtype=torch.float32, device=rows.device)
    if rows.shape[0]:
        for choice in range(index.shape[1]):
            at = index[:, choice]
            part = rows[at.clamp(min=0)].float() * weights[:, choice, None]
            # Not a product with 0: what lies in a row that is not meant may be NaN.
            total += torch.where((at >= 0).unsqueeze(1), part, 0.0)
    return total.to(rows.dtype)
