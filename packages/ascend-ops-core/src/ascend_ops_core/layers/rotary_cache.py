"""A table of cos and sin that grows with the positions it is asked for, up to a limit."""

from __future__ import annotations

import torch
from torch import nn

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.rotary_table import gather_cos_sin, mrope_cos_sin

_BLOCK = 4096


class RotaryCache(nn.Module):
    """Cosines and sines of ``position * frequency``, as many rows as were needed so far.

    A row does not depend on when it was made: a table that grew equals one that was built whole,
    bit for bit.

    Args:
        frequencies: ``[R / 2]`` float32, radians per token.
        positions: rows to build at once.
        limit: number of positions beyond which the table refuses to grow; None for ``positions``,
            so that it never grows.
        scale: factor of both cosine and sine (YaRN's attention factor).

    Attributes:
        cos: ``[rows, R / 2]`` float32.
        sin: the same shape and dtype.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    frequencies: torch.Tensor

    def __init__(
        self,
        frequencies: torch.Tensor,
        positions: int,
        limit: int | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.limit = positions if limit is None else limit
        self.scale = scale
        if not 0 < positions <= self.limit:
            raise InvalidInputError(
                f"positions={positions}",
                f"a table has 1 to limit={self.limit} of them",
                "Raise the limit or build fewer positions.",
            )
        self.register_buffer("frequencies", frequencies.float(), persistent=False)
        cos, sin = self._built(0, positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @property
    def positions(self) -> int:
        """Number of positions in the table."""
        return self.cos.shape[0]

    def reserve(self, positions: int) -> None:
        """Make sure that the table holds ``positions`` positions.

        Where positions live on a device this is called at admission, with a number that the host
        knows. It replaces the tables, so it comes before a graph is captured.

        Raises:
            InvalidInputError: they exceed the limit.
        """
        if positions > self.limit:
            raise InvalidInputError(
                f"position {positions - 1}",
                f"the rotary table may hold positions 0 to {self.limit - 1}",
                "Lower max_model_len, or raise the table's limit.",
            )
        if positions > self.positions:
            rows = min(-(-positions // _BLOCK) * _BLOCK, self.limit)
            cos, sin = self._built(self.positions, rows)
            self.cos = torch.cat((self.cos, cos))
            self.sin = torch.cat((self.sin, sin))

    def gather(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the table, which grows first if positions on a CPU ask for it.

        Args:
            positions: ``[T]`` int32 or int64.

        Returns:
            ``cos`` and ``sin``, each ``[T, R / 2]`` float32.

        Raises:
            InvalidInputError: on a CPU, a position that is negative or beyond the limit.
        """
        self._grow_for(positions)
        return gather_cos_sin(self.cos, self.sin, positions)

    def gather_mrope(
        self, positions: torch.Tensor, sections: list[int], interleaved: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows for ``[3, T]`` positions; see :func:`ascend_ops_core.ops.rotary_table`."""
        self._grow_for(positions)
        return mrope_cos_sin(self.cos, self.sin, positions, sections, interleaved)

    def _grow_for(self, positions: torch.Tensor) -> None:
        if positions.numel() and positions.device.type == "cpu":
            self.reserve(int(positions.max()) + 1)

    def _built(self, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        place = torch.arange(first, end, dtype=torch.float32, device=self.frequencies.device)
        angle = place[:, None] * self.frequencies
        cos, sin = angle.cos(), angle.sin()
        return (cos, sin) if self.scale == 1.0 else (cos * self.scale, sin * self.scale)
