"""What one engine step processes, as flat arrays: built once per step, read by every layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True)
class StepLayout:
    """The ragged batch of one step.

    Attributes:
        query_start: ``[R + 1]`` first token of every request in the flat batch.
        seq_lens: ``[R]`` context length of every request, this step's tokens included.
        request: ``[T]`` int64, the request of every token.
        position: ``[T]`` int64, the token's index within its request.
    """

    query_start: npt.NDArray[np.int64]
    seq_lens: npt.NDArray[np.int64]
    request: torch.Tensor
    position: torch.Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens of the step, padding excluded."""
        return int(self.query_start[-1])

    @property
    def query_lens(self) -> npt.NDArray[np.int64]:
        """``[R]`` tokens of every request in this step."""
        return np.diff(self.query_start)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """``[R]`` tokens of every request that earlier steps computed."""
        return self.seq_lens - self.query_lens

    @classmethod
    def build(cls, query_start: npt.ArrayLike, seq_lens: npt.ArrayLike) -> StepLayout:
        """Flatten the batch.

        Args:
            query_start: ``[R + 1]`` cumulative query lengths, starting at 0.
            seq_lens: ``[R]`` context lengths.
        """
        starts = np.asarray(query_start, dtype=np.int64)
        lens = np.asarray(seq_lens, dtype=np.int64)
        query_lens = np.diff(starts)
        request = np.repeat(np.arange(len(lens)), query_lens)
        position = np.arange(starts[-1]) - np.repeat(starts[:-1] - (lens - query_lens), query_lens)
        return cls(starts, lens, torch.from_numpy(request), torch.from_numpy(position))

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
        first, last = layout.starts // ratio, layout.seq_lens // ratio
        counts = np.maximum(last - first, 0)
        request = np.repeat(np.arange(len(counts)), counts)
        before = np.repeat(np.cumsum(counts) - counts, counts)
        entry = np.arange(counts.sum()) - before + np.repeat(first, counts)
        return cls(torch.from_numpy(request), torch.from_numpy(entry))
