"""What one engine step processes, as flat arrays: built once per step, read by every layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from ascend_ops_core.errors import InvalidInputError

_T = TypeVar("_T")


@dataclass(eq=False)
class StepLayout:
    """The ragged batch of one step.

    What the scheduler knows stays on the host, where sizes are computed; what kernels read is on
    the device.

    Attributes:
        query_start: ``[R + 1]`` int64 on the host, first token of every request in the flat batch.
        seq_lens: ``[R]`` int64 on the host, context length of every request, this step's tokens
            included.
        request: ``[T]`` int64, the request of every token.
        position: ``[T]`` int64, the token's index within its request.
        known: False in a :class:`UniformLayout`, whose ``seq_lens`` is on the device.
    """

    query_start: torch.Tensor
    seq_lens: torch.Tensor
    request: torch.Tensor
    position: torch.Tensor
    known: bool = True

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of the step, padding excluded."""
        return int(self.query_start[-1])

    @cached_property
    def query_lens(self) -> torch.Tensor:
        """``[R]`` tokens of every request in this step, on the host."""
        return self.query_start.diff()

    @cached_property
    def host_lengths(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Where each request's tokens end and its context length; both empty if not ``known``."""
        if not self.known:
            return (), ()
        return tuple(self.query_start[1:].tolist()), tuple(self.seq_lens.tolist())

    @cached_property
    def starts(self) -> torch.Tensor:
        """``[R]`` tokens of every request that earlier steps computed, on the host.

        Raises:
            InvalidInputError: only the device knows the context lengths.
        """
        if not self.known:
            raise InvalidInputError(
                "a step whose context lengths are on the device",
                "compressed caches need them on the host",
                "Build the layout with StepLayout.build.",
            )
        return self.seq_lens - self.query_lens

    @cached_property
    def least_position(self) -> int:
        """Smallest position of a token, 0 without tokens."""
        starts = self.starts[self.query_lens > 0]
        return int(starts.min()) if len(starts) else 0

    @cached_property
    def longest_context(self) -> int:
        """Largest context length of a request with tokens; 0 without tokens."""
        used = self.seq_lens[self.query_lens > 0]
        return int(used.max()) if len(used) else 0

    @classmethod
    def build(
        cls, query_start: Any, seq_lens: Any, device: torch.device | str = "cpu"
    ) -> StepLayout:
        """Flatten the batch.

        Args:
            query_start: ``[R + 1]`` cumulative query lengths, starting at 0; a sequence, an array
                or a CPU tensor.
            seq_lens: ``[R]`` context lengths, the same.
            device: where ``request`` and ``position`` are needed.
        """
        starts = torch.as_tensor(query_start, dtype=torch.int64)
        lens = torch.as_tensor(seq_lens, dtype=torch.int64)
        query_lens = starts.diff()
        request = torch.arange(len(lens)).repeat_interleave(query_lens)
        before = starts[:-1] - (lens - query_lens)
        position = torch.arange(int(starts[-1])) - before.repeat_interleave(query_lens)
        request, position = to_device(device, request, position)
        return cls(starts, lens, request, position)

    def visible_entries(self, ratio: int) -> torch.Tensor:
        """``[T]`` int64: compressed entries that each token may attend to, ``(p + 1) // ratio``."""
        return self._once(("visible", ratio), lambda: (self.position + 1) // ratio)

    def closed_entries(self, ratio: int) -> ClosedEntries:
        """:meth:`ClosedEntries.of` this step, computed once for all caches of the ratio."""
        return self._once(("closed", ratio), lambda: ClosedEntries.of(self, ratio))

    def window_positions(self, window: int) -> torch.Tensor:
        """``[T, window]`` int64: positions up to each token's own; negative before the first."""

        def make() -> torch.Tensor:
            back = torch.arange(window - 1, -1, -1, device=self.position.device)
            return self.position.unsqueeze(-1) - back

        return self._once(("window", window), make)

    def _once(self, key: tuple[str, int], make: Callable[[], _T]) -> _T:
        made = self.__dict__.setdefault("_made", {})
        if key not in made:
            made[key] = make()
        result: _T = made[key]
        return result


class UniformLayout(StepLayout):
    """A batch of ``query_len`` tokens of each request, whose context lengths the device knows.

    Everything is computed on the device from ``seq_lens``, when it is first asked for: inside a
    captured region that becomes part of the graph, so a replay needs nothing from the host.

    Args:
        seq_lens: ``[R]`` integer on the device; 0 for padding. A graph reads it where it lies.
        query_len: tokens of every request.
        max_context: largest context length that may occur; sizes what is read.
    """

    def __init__(self, seq_lens: torch.Tensor, query_len: int, max_context: int) -> None:
        self.query_start = torch.arange(seq_lens.shape[0] + 1) * query_len
        self.seq_lens = seq_lens
        self.known = False
        self._query_len = query_len
        self._max_context = max_context

    @cached_property
    def request(self) -> torch.Tensor:  # type: ignore[override]
        """``[T]`` int64, the request of every token."""
        count = self.seq_lens.shape[0] * self._query_len
        return torch.arange(count, device=self.seq_lens.device) // self._query_len

    @cached_property
    def position(self) -> torch.Tensor:  # type: ignore[override]
        """``[T]`` int64, the token's index within its request; negative for padding."""
        back = torch.arange(self._query_len, 0, -1, device=self.seq_lens.device)
        return (self.seq_lens.long().unsqueeze(-1) - back).flatten()

    @cached_property
    def least_position(self) -> int:
        """0: a request may be new."""
        return 0

    @cached_property
    def longest_context(self) -> int:
        """The largest context length that may occur."""
        return self._max_context


class BlockLayout(UniformLayout):
    """A block of each request whose tokens see one another, and one window in front of the block.

    That is how a block draft attends over a sliding window: all tokens of a block see the same
    rows, those behind them too (DSpark; vLLM: ``v1/attention/backends/mla/sparse_swa.py:
    _compute_dspark_noncausal_swa_indices_kernel``).

    Args:
        seq_lens: ``[R]`` integer on the device, with those tokens of the block that are cached.
        query_len: tokens of every block.
        max_context: largest context length that may occur.
        slots: ``[>= R * query_len]`` integer on the device; negative for tokens that are not
            cached, which are the last ones of a block.
    """

    def __init__(
        self, seq_lens: torch.Tensor, query_len: int, max_context: int, slots: torch.Tensor
    ) -> None:
        super().__init__(seq_lens, query_len, max_context)
        self._slots = slots[: self.num_tokens]

    @cached_property
    def least_position(self) -> int:
        """-1, since places of a window may be empty however long a context is."""
        return -1

    def window_positions(self, window: int) -> torch.Tensor:
        """``[T, window + query_len]`` int64: positions that each token sees; negative for none."""

        def make() -> torch.Tensor:
            ends = self.seq_lens.long()
            cached = (self._slots.unflatten(0, (-1, self._query_len)) >= 0).sum(1)
            place = torch.arange(-window, self._query_len, device=ends.device)
            position = (ends - cached).unsqueeze(1) + place
            position = torch.where(position < ends.unsqueeze(1), position, -1)
            return position.repeat_interleave(self._query_len, dim=0)

        return self._once(("window", window), make)


@dataclass(frozen=True)
class ClosedEntries:
    """Compressed entries that a step completes.

    Attributes:
        request: ``[N]`` int64, on the layout's device.
        entry: ``[N]`` int64, the entry's index within its request, on the same.
        real: ``[N]`` bool, entries that are completed; None for all of them.
    """

    request: torch.Tensor
    entry: torch.Tensor
    real: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.entry.shape[0]

    @classmethod
    def of(cls, layout: StepLayout, ratio: int) -> ClosedEntries:
        """Entries whose last token lies in this step: no other is emitted.

        Where only the device knows the context lengths there is a place for every token.
        """
        if not layout.known:
            ahead = layout.position + 1
            real = (ahead % ratio == 0) & (ahead > 0)
            return cls(layout.request, (ahead // ratio - 1).clamp(min=0), real)
        first = layout.starts // ratio
        counts = ((layout.starts + layout.query_lens) // ratio - first).clamp(min=0)
        request = torch.arange(len(counts)).repeat_interleave(counts)
        before = counts.cumsum(0) - counts
        entry = torch.arange(len(request)) + (first - before).repeat_interleave(counts)
        on_device = to_device(layout.position.device, request, entry)
        return cls(on_device[0], on_device[1])


def to_device(device: torch.device | str, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Copy int64 host tensors of one length to a device at once, without waiting for it.

    Args:
        device: the target; on a CPU the tensors are returned as they are.
        tensors: ``[N]`` each.
    """
    if torch.device(device).type == "cpu":
        return tensors
    # Pinned memory is what a copy can read after this returns.
    return torch.stack(tensors).pin_memory().to(device, non_blocking=True).unbind(0)
