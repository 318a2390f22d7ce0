"""Which part of a whole expert's tensor belongs to one tensor-parallel rank, and where it goes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_ops_core.errors import InvalidInputError

__all__ = ["ExpertSlice"]

_SUFFIXES = ("", "_scale", "_bias")
_PARTS = {"w1": "w13", "w3": "w13", "w13": "w13", "w2": "w2"}


@dataclass(frozen=True)
class ExpertSlice:
    """A part of the intermediate channels.

    Attributes:
        whole: ``I`` of a whole expert.
        rank: tensor-parallel rank.
        ranks: tensor-parallel ranks.
        unit: channels that share a scale or a byte.
        interleaved: gate and up channels alternate in ``w13``.

    Raises:
        InvalidInputError: channels that do not divide among the ranks in whole units.
    """

    whole: int
    rank: int
    ranks: int
    unit: int
    interleaved: bool

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise InvalidInputError(
                f"tp_rank={self.rank}", f"there are {self.ranks} ranks", "Pass the rank."
            )
        if self.whole < 1 or self.whole % (self.ranks * self.unit):
            raise InvalidInputError(
                f"intermediate_size={self.whole} on {self.ranks} tensor-parallel ranks",
                f"each takes as many channels, in whole units of {self.unit}",
                "Use expert parallelism, which leaves experts whole, or another size.",
            )

    @property
    def size(self) -> int:
        """Channels of this rank."""
        return self.whole // self.ranks

    def parameter_of(self, part: str) -> tuple[str, str]:
        """The parameter that a part of a checkpoint goes to, and which half of it.

        Returns:
            For example ``("w13_scale", "w3")``; the half is ``both`` for ``w13``.

        Raises:
            InvalidInputError: an unknown part.
        """
        stem = part.split("_", 1)[0]
        suffix = part[len(stem) :]
        if stem not in _PARTS or suffix not in _SUFFIXES:
            raise InvalidInputError(
                f"part {part!r}",
                f"parts are {', '.join(_PARTS)}, also with _scale or _bias",
                "Map the checkpoint's names to these.",
            )
        return _PARTS[stem] + suffix, "both" if stem == "w13" else stem

    def parts_of(self, name: str) -> tuple[str, ...]:
        """The halves of a parameter."""
        return ("w1", "w3") if name.startswith("w13") else ("w2",)

    def target(self, parameter: torch.Tensor, which: str) -> torch.Tensor:
        """The view of one expert's parameter that a half goes to."""
        if which in ("both", "w2"):
            return parameter
        second = which == "w3"
        if self.interleaved:
            return parameter[second::2]
        half = parameter.shape[0] // 2
        return parameter[half:] if second else parameter[:half]

    def cut(self, part: str, value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """This rank's slice of a whole expert's tensor.

        Args:
            part: as in :meth:`parameter_of`.
            value: of a whole expert.
            parameter: ``[places, ...]``, which it goes to.

        Raises:
            InvalidInputError: another shape or dtype than the slices of all ranks have together.
        """
        name, which = self.parameter_of(part)
        if value.dtype == torch.float8_e8m0fnu:
            value = value.view(torch.uint8)
        target = self.target(parameter[0], which)
        axis = self._axis(name, target)
        shape = list(target.shape)
        if axis is not None:
            shape[axis] *= self.ranks
        if list(value.shape) != shape or value.dtype != parameter.dtype:
            raise InvalidInputError(
                f"{part} of {value.dtype} and shape {list(value.shape)}",
                f"the layer takes {parameter.dtype} {shape}",
                "Check the quantisation and the sizes in the model's config.",
            )
        if axis is None:
            summed = name == "w2_bias" and self.rank > 0
            return torch.zeros_like(value) if summed else value
        if which == "both" and not self.interleaved:
            halves = [one.chunk(self.ranks, axis)[self.rank] for one in value.chunk(2, axis)]
            return torch.cat(halves, axis)
        return value.chunk(self.ranks, axis)[self.rank]

    def _axis(self, name: str, target: torch.Tensor) -> int | None:
        """The axis along which ranks have different channels; None where all have the same."""
        if name.startswith("w13"):
            return 0
        if name == "w2_bias" or target.dim() == 1:
            return None
        return 1
