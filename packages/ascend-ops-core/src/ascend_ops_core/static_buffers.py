"""Buffers of fixed address, which captured graphs read in place of the tensors of a step.

A graph replays the addresses that it was captured with. So what changes from step to step is
copied into a buffer that was allocated once, and three things must hold before every replay: no
buffer has moved, the step fits into all of them, and each was filled for this step, in every row.
A buffer that was not would feed the graph what the last step left there: wholly, where a step
leaves it out, or behind a rank's own rows, where one leaves out the all-gather of the others'. Here
both are errors that name the buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ascend_ops_core.errors import InvalidInputError


class StaticBufferError(RuntimeError):
    """A replay would read something else than the program means."""


_GATHER = (
    "the others would keep the values of an earlier step. Where ranks share the rows of a step, "
    "all-gather them before the buffer is filled"
)


@dataclass
class _Buffer:
    tensor: torch.Tensor
    padding: float
    every_step: bool
    per_token: bool
    filled: int | None = None  # rows, since the last replay or the beginning of a capture


@dataclass(frozen=True)
class Snapshot:
    """Where the buffers were when a graph was captured.

    Attributes:
        rows: rows that the graph works on.
        addresses: address of each buffer by name.
    """

    rows: int
    addresses: dict[str, int]


class StaticBuffers:
    """Named buffers ``[rows, ...]``, a row of which belongs to a token of the step or to itself."""

    def __init__(self) -> None:
        self._buffers: dict[str, _Buffer] = {}
        self._ever_filled: set[str] = set()

    def add(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str,
        *,
        padding: float = 0,
        every_step: bool = True,
        per_token: bool = True,
    ) -> torch.Tensor:
        """Allocate a buffer, filled with ``padding``, and return it.

        Args:
            name: by which errors call it.
            shape: its first size is its capacity in rows.
            dtype: of the buffer.
            device: of the buffer.
            padding: what rows beyond those filled hold.
            every_step: it must be filled before every replay; not so where the graph fills it.
            per_token: a row belongs to a token, so that no graph may have more tokens.

        Raises:
            InvalidInputError: the name is taken, or the shape has no rows.
        """
        if name in self._buffers:
            raise InvalidInputError(
                f"static buffer {name!r}", "there is one of that name", "Give it another name."
            )
        if not shape or min(shape) < 0:
            raise InvalidInputError(
                f"shape {tuple(shape)} of static buffer {name!r}",
                "its first size is the number of rows, and none is negative",
                "Give its capacity.",
            )
        tensor = torch.full(tuple(shape), padding, dtype=dtype, device=device)
        self._buffers[name] = _Buffer(tensor, padding, every_step, per_token)
        return tensor

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._named(name).tensor

    def __contains__(self, name: object) -> bool:
        return name in self._buffers

    def capacity(self, name: str) -> int:
        """Return the number of rows of a buffer."""
        return self._named(name).tensor.shape[0]

    def check_rows(self, name: str, rows: int) -> None:
        """Refuse more rows than a buffer has, before anything is written.

        Raises:
            InvalidInputError: naming the buffer, its capacity and the rows asked for.
        """
        capacity = self.capacity(name)
        if rows > capacity:
            raise InvalidInputError(
                f"{rows} rows for static buffer {name!r}",
                f"it was allocated with {capacity}",
                "Raise max_num_seqs, max_num_batched_tokens or the capture sizes, from which its "
                "size comes, or run this batch without a graph.",
            )

    def fill(
        self,
        name: str,
        values: torch.Tensor,
        padded_rows: int | None = None,
        *,
        step_rows: int | None = None,
    ) -> torch.Tensor:
        """Copy the rows of this step into a buffer.

        Args:
            name: which buffer.
            values: ``[n, ...]``, on any device; from the host it should be pinned, so that nothing
                waits.
            padded_rows: rows that the graph reads; those behind ``values`` get the padding value.
            step_rows: rows of the step, where ``values`` must hold all of them.

        Returns:
            The first ``max(n, padded_rows)`` rows of the buffer, a view.

        Raises:
            InvalidInputError: it does not fit.
            StaticBufferError: ``values`` has other rows than the step.
        """
        buffer = self._named(name)
        if step_rows is not None and values.shape[0] != step_rows:
            raise StaticBufferError(
                f"{values.shape[0]} rows for static buffer {name!r} in a step of {step_rows}: "
                f"{_GATHER}."
            )
        count = values.shape[0]
        rows = max(count, padded_rows or 0)
        self.check_rows(name, rows)
        if values.shape[1:] != buffer.tensor.shape[1:]:
            raise InvalidInputError(
                f"values {tuple(values.shape)} for static buffer {name!r}",
                f"its rows are {tuple(buffer.tensor.shape[1:])}",
                "Fill it with rows of its own shape.",
            )
        buffer.tensor[:count].copy_(values, non_blocking=True)
        buffer.tensor[count:rows].fill_(buffer.padding)
        buffer.filled = rows
        self._ever_filled.add(name)
        return buffer.tensor[:rows]

    def parts(self, name: str, rows: int) -> torch.Tensor:
        """The beginning of a buffer ``[capacity, P, ...]`` as ``[P, rows, ...]``, contiguous.

        What a collective sends to each of ``P`` ranks must lie together, for any number of rows.

        Raises:
            InvalidInputError: it does not fit.
        """
        self.check_rows(name, rows)
        tensor = self._named(name).tensor
        ranks, *inner = tensor.shape[1:]
        return tensor.flatten()[: rows * tensor[0].numel()].view(ranks, rows, *inner)

    def snapshot(self, rows: int) -> Snapshot:
        """Return where everything is, for a graph over ``rows`` tokens that is captured now.

        Raises:
            InvalidInputError: a buffer has fewer rows.
        """
        for name, one in self._buffers.items():
            if one.per_token:
                self.check_rows(name, rows)
        return Snapshot(rows, {name: one.tensor.data_ptr() for name, one in self._buffers.items()})

    def expect_fills(self) -> None:
        """Begin a captured region, in which the graph fills the buffers that it fills itself.

        Expected are those that an earlier forward filled; a warm-up precedes every capture.
        """
        for name in self._ever_filled:
            if not self._buffers[name].every_step:
                self._buffers[name].filled = None

    def check_fills(self, rows: int) -> None:
        """Refuse a captured region that left one of those buffers, or rows of it, as they were.

        Args:
            rows: of the graph.

        Raises:
            StaticBufferError: naming the buffers.
        """
        known = {name: self._buffers[name] for name in sorted(self._ever_filled)}
        skipped = [name for name, one in known.items() if not one.every_step and one.filled is None]
        if skipped:
            raise StaticBufferError(
                f"the graph of {rows} tokens never fills static buffers {', '.join(skipped)}: "
                "whatever continues from them would read the values of an earlier step. Fill them "
                "in every forward, on every rank."
            )
        filled = {name: one for name, one in known.items() if not one.every_step}
        _refuse_parts("the graph", filled, rows)

    def check_replay(self, captured: Snapshot, rows: int) -> None:
        """Refuse a replay that would not compute this step; after it, all must be filled anew.

        Args:
            captured: what :meth:`snapshot` gave at the capture.
            rows: rows of this step.

        Raises:
            InvalidInputError: the step has more rows than the graph.
            StaticBufferError: a buffer moved, is gone, or was not filled since the last replay, or
                not in all rows of the step.
        """
        if rows > captured.rows:
            raise InvalidInputError(
                f"{rows} rows", f"the graph was captured for {captured.rows}", "Use a larger graph."
            )
        for name, address in captured.addresses.items():
            buffer = self._buffers.get(name)
            if buffer is None or buffer.tensor.data_ptr() != address:
                now = "gone" if buffer is None else f"at {buffer.tensor.data_ptr():#x}"
                raise StaticBufferError(
                    f"static buffer {name!r} was at {address:#x} when the graph was captured and "
                    f"is {now}: the graph would read old memory. Keep the buffer and copy into it, "
                    "or capture again."
                )
        stale = [
            name for name, one in self._buffers.items() if one.every_step and one.filled is None
        ]
        if stale:
            raise StaticBufferError(
                f"static buffers not filled since the last replay: {', '.join(stale)}. The graph "
                "would compute with the values of an earlier step; fill them on every rank."
            )
        steps = {name: one for name, one in self._buffers.items() if one.every_step}
        _refuse_parts("the step", steps, rows)
        for buffer in self._buffers.values():
            buffer.filled = None

    def _named(self, name: str) -> _Buffer:
        try:
            return self._buffers[name]
        except KeyError:
            raise InvalidInputError(
                f"static buffer {name!r}",
                f"known are {', '.join(self._buffers) or 'none'}",
                "Add it before it is used.",
            ) from None


def _refuse_parts(what: str, buffers: Mapping[str, _Buffer], rows: int) -> None:
    for name, one in buffers.items():
        if one.per_token and one.filled is not None and one.filled < rows:
            raise StaticBufferError(
                f"{what} of {rows} tokens fills {one.filled} rows of static buffer {name!r}: "
                f"{_GATHER}."
            )
