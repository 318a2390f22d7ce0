"""What changed between two versions of torch_npu."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """An operator whose schema differs.

    Attributes:
        op: its name.
        before: schema in the older wheel, None if it was absent.
        after: schema in the newer wheel, None if it is gone.
    """

    op: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.op}: new"
        if self.after is None:
            return f"{self.op}: gone"
        return f"{self.op}: {self.before}  ->  {self.after}"


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    """Return the operators that were added, removed or changed, by name.

    Args:
        before: schemas of the older wheel, as from
            :func:`ascend_ops_core.testing.contract.read_schemas`.
        after: schemas of the newer wheel.
    """
    return [
        Change(op, before.get(op), after.get(op))
        for op in sorted(before.keys() | after.keys())
        if before.get(op) != after.get(op)
    ]
