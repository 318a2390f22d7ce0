"""What one engine step processes, as flat arrays: built once per step, read by every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class StepLayout:
    """The ragged batch of one step.

    Attributes:
        query_start: ``[R + 1]`` int64, first token of every request in the flat batch.
        seq_lens: ``[R]`` int64, context length of every request, this step's tokens included.
        request: ``[T]`` int64, the request of every token.
        position: ``[T]`` int64, the token's index within its request.
    """

    query_start: torch.Tensor
    seq_lens: torch.Tensor
    request: torch.Tensor
    position: torch.Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens of the step, padding excluded."""
        return int(self.query_start[-1])

    @property
    def query_lens(self) -> torch.Tensor:
        """``[R]`` tokens of every request in this step."""
        return self.query_start.diff()

    @property
    def starts(self) -> torch.Tensor:
        """``[R]`` tokens of every request that earlier steps computed."""
        return self.seq_lens - self.query_lens

    @classmethod
    def build(cls, query_start: Any, seq_lens: Any) -> StepLayout:
        """Flatten the batch.

        Args:
            query_start: ``[R + 1]`` cumulative query lengths, starting at 0; a sequence, an array
                or a CPU tensor.
            seq_lens: ``[R]`` context lengths.
        """
        starts = torch.as_tensor(query_start, dtype=torch.int64)
        lens = torch.as_tensor(seq_lens, dtype=torch.int64)
        query_lens = starts.diff()
        request = torch.arange(len(lens)).repeat_interleave(query_lens)
        before = starts[:-1] - (lens - query_lens)
        position = torch.arange(int(starts[-1])) - before.repeat_interleave(query_lens)
        return cls(starts, lens, request, position)

    def visible_entries(self, ratio: int) -> torch.Tensor:
        """``[T]`` int64: compressed entries that each token may attend to, ``(p + 1) // ratio``."""
        return (self.position + 1) // ratio


@dataclass(frozen=True)
class ClosedEntries:
    """Compressed entries that a step completes.

    Attributes:
        request: ``[N]`` int64.
        entry: ``[N]`` int64, the entry's index within its request.
    """

    request: torch.Tensor
    entry: torch.Tensor

    def __len__(self) -> int:
        return self.entry.shape[0]

    @classmethod
    def of(cls, layout: StepLayout, ratio: int) -> ClosedEntries:
        """Entries whose last token lies in this step: no other is emitted."""
        first = layout.starts // ratio
        counts = (layout.seq_lens // ratio - first).clamp(min=0)
        request = torch.arange(len(counts)).repeat_interleave(counts)
        before = counts.cumsum(0) - counts
        entry = torch.arange(len(request)) + (first - before).repeat_interleave(counts)
        return cls(request, entry)
