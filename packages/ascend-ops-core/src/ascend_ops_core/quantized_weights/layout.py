"""Where the tensors of a checkpoint's layers go in a weight that a rank holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.quantized_weights.formats import Role, Scheme, StoredTensor
from ascend_ops_core.quantized_weights.stored_values import converter

__all__ = ["Placement", "WeightLayout", "WeightPart"]


@dataclass(frozen=True)
class WeightPart:
    """What a rank holds of one layer of the checkpoint.

    Attributes:
        rows: of the whole weight.
        columns: of the whole weight.
        row_range: rows of this rank, half open; None for all.
        column_range: columns of this rank, half open; None for all. The same for all parts of a
            weight.
    """

    rows: int
    columns: int
    row_range: tuple[int, int] | None = None
    column_range: tuple[int, int] | None = None

    @property
    def own_rows(self) -> tuple[int, int]:
        """Rows of this rank, half open."""
        return self.row_range or (0, self.rows)

    @property
    def own_columns(self) -> tuple[int, int]:
        """Columns of this rank, half open."""
        return self.column_range or (0, self.columns)


@dataclass(frozen=True)
class Placement:
    """One tensor of a checkpoint: its forms, and which part of it goes where.

    Attributes:
        stored: its forms in the checkpoint.
        shapes: that it may have.
        parameter: name of the tensor it goes to, or None if it is only checked.
        source: part of it that this rank has, after :attr:`convert`.
        target: rows of the parameter.
        convert: brings a whole tensor of the checkpoint into the parameter's form.
    """

    stored: StoredTensor
    shapes: tuple[tuple[int, ...], ...]
    parameter: str | None
    source: tuple[slice, ...]
    target: tuple[slice, ...]
    convert: Callable[[torch.Tensor], torch.Tensor]


class WeightLayout:
    """Parts of a weight, below each other, in one scheme.

    Scales stay in blocks: a slice that begins or ends within a block has the whole block's scale,
    and ``scale_rows`` says which one a row has, so any slice of any layer can be held.

    Args:
        scheme: of all parts.
        parts: from the first row on.

    Raises:
        InvalidInputError: parts with different columns, or cut within a byte.
    """

    def __init__(self, scheme: Scheme, parts: Sequence[WeightPart]) -> None:
        self.scheme = scheme
        self.parts = tuple(parts)
        self.columns = self.parts[0].own_columns
        share = scheme.format.codes.per_byte
        values = scheme.tensor(Role.VALUES)
        pairs = share if values is not None and values.row_pairs else 1
        for part in self.parts:
            if part.own_columns != self.columns or part.columns != self.parts[0].columns:
                raise InvalidInputError(
                    f"parts with columns {part.own_columns} and {self.columns}",
                    "the parts of a weight lie below each other",
                    "Hold them as several weights.",
                )
            if any(one % share for one in part.own_columns) or part.rows % pairs:
                raise InvalidInputError(
                    f"columns {part.own_columns} of {part.rows} rows in {scheme.name}",
                    f"{share} values share a byte",
                    "Choose another tensor-parallel size.",
                )

    @property
    def rows(self) -> int:
        """Rows of the weight."""
        return sum(stop - start for start, stop in (one.own_rows for one in self.parts))

    @property
    def width(self) -> int:
        """Columns of the weight."""
        return self.columns[1] - self.columns[0]

    @property
    def values_shape(self) -> tuple[int, int]:
        """Of the values, two of which may share a byte."""
        return self.rows, self.width // self.scheme.format.codes.per_byte

    @property
    def scale_shape(self) -> tuple[int, int]:
        """Of the scales."""
        count = sum(len(self._scale_rows(one)) for one in self.parts)
        blocks = self._scale_columns()
        return count, len(blocks)

    @property
    def first_column(self) -> int:
        """The place of column 0 among those that share its scale."""
        share = self.scheme.format.columns
        return self.columns[0] % share if share else 0

    def scale_rows(self) -> torch.Tensor | None:
        """``[N]`` int32, the row of scales of each row; None where each has its own."""
        height = self.scheme.format.rows
        if height == 1:
            return None
        found, base = [], 0
        for part in self.parts:
            held = self._scale_rows(part)
            numbers = torch.arange(*part.own_rows, dtype=torch.int32)
            block = numbers // height if height else torch.zeros_like(numbers)
            found.append(block - held.start + base)
            base += len(held)
        return torch.cat(found)

    def placements(self, index: int) -> list[Placement]:
        """What becomes of the tensors of a part's layer."""
        part = self.parts[index]
        first = sum(stop - start for start, stop in (p.own_rows for p in self.parts[:index]))
        start, stop = part.own_rows
        scale_first = sum(len(self._scale_rows(one)) for one in self.parts[:index])
        held = self._scale_rows(part)
        share = self.scheme.format.codes.per_byte
        blocks = self._scale_columns()
        areas: dict[str, tuple[tuple[slice, ...], tuple[slice, ...]]] = {
            "weight": (
                (slice(start, stop), slice(self.columns[0] // share, self.columns[1] // share)),
                (slice(first, first + stop - start),),
            ),
            "scale": (
                (slice(held.start, held.stop), slice(blocks.start, blocks.stop)),
                (slice(scale_first, scale_first + len(held)),),
            ),
            "input_scale": ((slice(0, 1),), (slice(index, index + 1),)),
        }
        made = []
        for stored in self.scheme.tensors:
            name = _PARAMETERS.get(stored.role)
            source, target = areas[name] if name else _NOWHERE
            made.append(
                Placement(
                    stored,
                    stored.shapes(part.rows, part.columns),
                    name,
                    source,
                    target,
                    converter(stored, self.scheme.format),
                )
            )
        return made

    def _scale_rows(self, part: WeightPart) -> range:
        height = self.scheme.format.rows
        start, stop = part.own_rows
        return range(start // height, -(-stop // height)) if height else range(1)

    def _scale_columns(self) -> range:
        share = self.scheme.format.columns
        if not share:
            return range(1)
        return range(self.columns[0] // share, -(-self.columns[1] // share))


_NOWHERE: tuple[tuple[slice, ...], tuple[slice, ...]] = ((), ())
_PARAMETERS = {
    Role.VALUES: "weight",
    Role.SCALE: "scale",
    Role.DEQUANTIZATION_SCALE: "scale",
    Role.INPUT_SCALE: "input_scale",
}
