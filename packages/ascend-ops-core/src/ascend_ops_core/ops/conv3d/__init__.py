"""Convolution over time, height and width, as vision encoders embed their patches."""

from __future__ import annotations

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["conv3d"]

Sizes = list[int] | tuple[int, ...]


def conv3d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    stride: Sizes = (1, 1, 1),
    padding: Sizes = (0, 0, 0),
    dilation: Sizes = (1, 1, 1),
    groups: int = 1,
) -> torch.Tensor:
    """``torch.nn.functional.conv3d``, as one matrix product where patches do not overlap.

    A kernel as large as its stride, without padding, dilation and groups, reads every value of
    ``x`` once: that is the product of the patches with the weight. On an NPU both forms are
    torch's own operators, which reach the vendor's cube and convolution kernels.

    Args:
        x: ``[B, C, T, H, W]``, any float dtype; ``B`` may be 0. What is left behind the last
            whole patch is not read.
        weight: ``[O, C / groups, kt, kh, kw]`` of the same dtype.
        bias: ``[O]`` or None.
        stride: of time, height and width.
        padding: zeros on both sides of each.
        dilation: distance of the kernel's elements.
        groups: parts of the channels that are convolved apart.

    Returns:
        ``[B, O, T', H', W']`` in ``x.dtype``.

    Raises:
        InvalidInputError: another number of axes or sizes, channels that do not fit, or an input
            smaller than the kernel.
    """
    if x.dim() != 5 or weight.dim() != 5 or x.shape[1] != weight.shape[1] * groups:
        raise InvalidInputError(
            f"x of shape {tuple(x.shape)}, weight of shape {tuple(weight.shape)}, groups={groups}",
            "they are [B, C, T, H, W] and [O, C / groups, kt, kh, kw]",
            "Check the shapes.",
        )
    named = {"stride": stride, "padding": padding, "dilation": dilation}
    for name, sizes in named.items():
        least = 0 if name == "padding" else 1
        if len(sizes) != 3 or min(sizes) < least:
            raise InvalidInputError(
                f"{name}={tuple(sizes)}", f"it is three sizes of at least {least}", "Correct it."
            )
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    room = [size + 2 * p for size, p in zip(x.shape[2:], padding, strict=True)]
    if any(r < k for r, k in zip(room, reach, strict=True)):
        raise InvalidInputError(
            f"input of {tuple(x.shape[2:])} with padding {tuple(padding)}",
            f"the kernel reaches over {tuple(reach)}",
            "Pad the input.",
        )
    result: torch.Tensor = _CONV3D(
        x, weight, bias, list(stride), list(padding), list(dilation), groups
    )
    return result


def _fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> torch.Tensor:
    sizes = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, p, d, k, s in zip(
            x.shape[2:], padding, dilation, weight.shape[2:], stride, strict=True
        )
    ]
    return x.new_empty(x.shape[0], weight.shape[0], *sizes)


_CONV3D = declare(
    __name__,
    "conv3d(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, "
    "int groups) -> Tensor",
    npu=("torch",),
    fake=_fake,
)
