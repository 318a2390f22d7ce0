"""Table of cos and sin by position, with DeepSeek-V4's complex-exponential convention."""

from __future__ import annotations

import torch
from torch import nn

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.rotary import YarnScaling, apply_rotary, rotary_frequencies


def precompute_freqs_cis(
    rotary_dim: int, theta: float, max_position: int, yarn: YarnScaling | None = None
) -> torch.Tensor:
    """``exp(i * position * frequency)`` as complex numbers, ``[max_position, rotary_dim / 2]``.

    The form in which DeepSeek publishes its tables; the layers use the two parts,
    :class:`ComplexExpRotaryEmbedding`.
    """
    table = ComplexExpRotaryEmbedding(rotary_dim, theta, max_position, yarn)
    return torch.complex(table.cos, table.sin)


class ComplexExpRotaryEmbedding(nn.Module):
    """``exp(i * position * frequency)`` for every position that a model may see.

    Args:
        rotary_dim: rotated channels per head, even.
        theta: base of the frequencies.
        max_position: number of positions in the table, in tokens.
        yarn: context extension, or None.
        scale: factor on cosine and sine, with which YaRN keeps the temperature of scores.

    Attributes:
        cos: ``[max_position, rotary_dim / 2]`` float32.
        sin: the same shape and dtype.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(
        self,
        rotary_dim: int,
        theta: float,
        max_position: int,
        yarn: YarnScaling | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.max_position = max_position
        frequencies = rotary_frequencies(rotary_dim, theta, yarn)
        angle = torch.arange(max_position, dtype=torch.float32)[:, None] * frequencies
        self.register_buffer("cos", angle.cos() * scale, persistent=False)
        self.register_buffer("sin", angle.sin() * scale, persistent=False)

    def gather(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the table.

        Args:
            positions: ``[T]`` integer.

        Returns:
            ``cos`` and ``sin``, each ``[T, rotary_dim / 2]`` float32.

        Raises:
            InvalidInputError: a position lies outside the table (checked on a CPU, where it
                costs no synchronisation; elsewhere the engine bounds positions at admission).
        """
        if positions.numel() and positions.device.type == "cpu":
            low, high = positions.aminmax()
            if int(high) >= self.max_position or int(low) < 0:
                bad = int(high) if int(high) >= self.max_position else int(low)
                raise InvalidInputError(
                    f"position {bad}",
                    f"the rotary table holds positions 0 to {self.max_position - 1}",
                    "Lower max_model_len, or build the table for a longer context.",
                )
        return self.cos[positions], self.sin[positions]

    def forward(
        self, positions: torch.Tensor, x: torch.Tensor, inverse: bool = False
    ) -> torch.Tensor:
        """Rotate the last ``rotary_dim`` channels of ``x`` ``[T, H, D]`` by ``positions``."""
        cos, sin = self.gather(positions)
        return apply_rotary(x, cos, sin, at_end=True, inverse=inverse)
