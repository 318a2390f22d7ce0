"""How many rows each expert has, and in which of the two forms that operators take.

torch_npu's grouped operators take either the rows of each expert or their running sums. Both are
``[E]`` int64, and one taken for the other computes the wrong experts without a word, so the kind
travels with the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from ascend_ops_core.errors import InvalidInputError

__all__ = ["GroupList", "GroupListKind"]


class GroupListKind(Enum):
    """What the values of a group list are; the value is torch_npu's ``group_list_type``."""

    CUMULATIVE = 0
    """The rows of each expert and of all before it."""

    COUNTS = 1
    """The rows of each expert."""


@dataclass(frozen=True)
class GroupList:
    """Rows of each local expert, the rows lying in the order of the experts.

    Attributes:
        values: ``[E]`` int64, on the device of the rows.
        kind: what the values are.

    Raises:
        InvalidInputError: another number of axes or another dtype.
    """

    values: torch.Tensor
    kind: GroupListKind

    def __post_init__(self) -> None:
        if self.values.dim() != 1:
            raise InvalidInputError(
                f"a group list of shape {list(self.values.shape)}",
                "it has one value for each local expert",
                "Pass a vector.",
            )
        if self.values.dtype != torch.int64:
            raise InvalidInputError(
                f"a group list of {self.values.dtype}",
                "grouped operators read int64",
                "Convert it with .long().",
            )

    @property
    def experts(self) -> int:
        """Number of groups."""
        return self.values.shape[0]

    def counts(self) -> GroupList:
        """The same list as :attr:`GroupListKind.COUNTS`; itself where it is one."""
        if self.kind is GroupListKind.COUNTS:
            return self
        zero = self.values.new_zeros(1)
        return GroupList(self.values.diff(prepend=zero), GroupListKind.COUNTS)

    def cumulative(self) -> GroupList:
        """The same list as :attr:`GroupListKind.CUMULATIVE`; itself where it is one."""
        if self.kind is GroupListKind.CUMULATIVE:
            return self
        return GroupList(self.values.cumsum(0), GroupListKind.CUMULATIVE)

    def with_all(self, rows: int) -> GroupList:
        """Running sums that give the last expert all rows behind the groups too.

        Computed where the list is, without a look at it.

        Args:
            rows: number of rows that are grouped.
        """
        ends = self.cumulative().values.clone()
        ends[-1:] = rows
        return GroupList(ends, GroupListKind.CUMULATIVE)

    def check(self, rows: int, experts: int) -> None:
        """Refuse a list that does not describe the rows; call it where one is made or handed in.

        Args:
            rows: number of rows that are grouped.
            experts: number of local experts.

        Raises:
            InvalidInputError: another number of groups; on a CPU, where looking does not wait for
                a device, also an expert with a negative number of rows, or another sum, both
                named.
        """
        if self.experts != experts:
            raise InvalidInputError(
                f"a group list of {self.experts} values",
                f"there are {experts} local experts",
                "Give each local expert one value, 0 where it has no rows.",
            )
        if self.values.device.type != "cpu":
            return
        name = self.kind.name.lower()
        counts = self.counts().values.tolist()
        if min(counts, default=0) < 0:
            raise InvalidInputError(
                f"a group list {self.values.tolist()} of kind {name}",
                f"expert {counts.index(min(counts))} would have {min(counts)} rows",
                "Check that counts were not declared as cumulative.",
            )
        if sum(counts) != rows:
            raise InvalidInputError(
                f"a group list {self.values.tolist()} of kind {name}",
                f"it stands for {sum(counts)} rows, and there are {rows}",
                "Check that its kind is the one it was made with.",
            )
