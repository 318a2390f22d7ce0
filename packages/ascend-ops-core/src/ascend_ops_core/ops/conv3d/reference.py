"""Definition of the convolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F


def conv3d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """See :func:`ascend_ops_core.ops.conv3d.conv3d`."""
    kernel = weight.shape[2:]
    spread = any(k > 1 and d != 1 for k, d in zip(kernel, dilation, strict=True))
    if list(stride) == list(kernel) and not any(padding) and groups == 1 and not spread:
        return _patches(x, weight, bias)
    return F.conv3d(x, weight, bias, list(stride), list(padding), list(dilation), groups)


def _patches(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    b, c, t, h, w = x.shape
    kt, kh, kw = weight.shape[2:]
    t, h, w = t // kt, h // kh, w // kw
    cut = x[:, :, : t * kt, : h * kh, : w * kw].reshape(b, c, t, kt, h, kh, w, kw)
    rows = cut.permute(0, 2, 4, 6, 1, 3, 5, 7).reshape(b * t * h * w, c * kt * kh * kw)
    y = F.linear(rows, weight.reshape(weight.shape[0], -1), bias)
    return y.view(b, t, h, w, weight.shape[0]).permute(0, 4, 1, 2, 3)
