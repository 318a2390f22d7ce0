"""DFlash2's convolution around attention and the MLP."""

from __future__ import annotations

import torch
from ascend_ops_core.ops.linear import linear
from torch import nn

from ascend_specdec.ops.grouped_convolution import grouped_convolution

__all__ = ["DFlashGroupedConv"]


class DFlashGroupedConv(nn.Module):
    """Mixes the rows of a block before a sublayer and behind it.

    Every row brings its own coefficients, made from the normed input of the sublayer.

    Args:
        hidden_size: ``H``, whole on every rank.
        taps: rows that one sees, itself among them.
        group: channels that share a coefficient, a divisor of ``H``.
        dtype: of the weights.

    Attributes:
        base_kernel: ``[2, taps, H]``, before and behind.
        kernel_projection: ``[2 * taps * H / group, H]``.
    """

    def __init__(self, hidden_size: int, taps: int, group: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.taps, self.groups = taps, hidden_size // group
        shape = (2 * taps * self.groups, hidden_size)
        self.base_kernel = nn.Parameter(
            torch.empty(2, taps, hidden_size, dtype=dtype), requires_grad=False
        )
        self.kernel_projection = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)

    def prepare(self, hidden: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the sublayer reads, ``[N, H]``, and the coefficients for :meth:`finish`.

        Args:
            hidden: ``[N, H]``, normed, whole blocks.
            block: rows of a block.
        """
        coefficients = linear(hidden, self.kernel_projection)
        coefficients = coefficients.view(-1, 2, self.taps, self.groups)
        return grouped_convolution(hidden, self.base_kernel, coefficients, 0, block), coefficients

    def finish(self, output: torch.Tensor, coefficients: torch.Tensor, block: int) -> torch.Tensor:
        """What is added to the residual, ``[N, H]``, of the sublayer's output ``[N, H]``."""
        return grouped_convolution(output, self.base_kernel, coefficients, 1, block)
