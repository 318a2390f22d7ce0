"""Which tokens of a context lie on which rank when ranks share it (context parallelism).

Tokens go round the ranks ``interleave`` at a time, and a rank keeps its own in order and without
gaps. This is vLLM's layout (``v1/worker/block_table.py`` and ``get_dcp_local_seq_lens`` in
``v1/attention/backends/utils.py``), in which a block of the block table stands for as many tokens
as all ranks' blocks hold. Everything is arithmetic on tensors where they lie, so no step waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from ascend_ops_core.checks import require_at_least
from ascend_ops_core.errors import InvalidInputError

_Count = TypeVar("_Count", int, torch.Tensor)


@dataclass(frozen=True)
class ContextShard:
    """One rank's part of every context.

    Attributes:
        ranks: ranks that share a context.
        rank: this one.
        interleave: consecutive tokens on one rank.

    Raises:
        InvalidInputError: no ranks, a rank outside of them, or an interleave below 1.
    """

    ranks: int = 1
    rank: int = 0
    interleave: int = 1

    def __post_init__(self) -> None:
        require_at_least("ranks", self.ranks, 1)
        require_at_least("interleave", self.interleave, 1)
        if not 0 <= self.rank < self.ranks:
            raise InvalidInputError(
                f"rank={self.rank}", f"it is 0 to {self.ranks - 1}", "Correct the rank."
            )

    def count(self, tokens: _Count) -> _Count:
        """Rows here of a context's first ``tokens`` tokens; 0 for less than one token."""
        cycle = self.ranks * self.interleave
        before = self.rank * self.interleave
        if isinstance(tokens, torch.Tensor):
            tokens = tokens.clamp(min=0)
            turns = torch.div(tokens, cycle, rounding_mode="floor")
            rest = (tokens - turns * cycle - before).clamp(0, self.interleave)
            return turns * self.interleave + rest
        turns, left = divmod(max(tokens, 0), cycle)
        return turns * self.interleave + min(max(left - before, 0), self.interleave)

    def most(self, tokens: int) -> int:
        """Rows of a context's first ``tokens`` tokens on the rank that has the most of them."""
        return ContextShard(self.ranks, 0, self.interleave).count(tokens)

    def row(self, token: torch.Tensor) -> torch.Tensor:
        """Row of a token here, in the dtype of ``token``; -1 where it lies elsewhere.

        Args:
            token: integer, a token's index within its request; a negative one is nowhere.
        """
        run = torch.div(token, self.interleave, rounding_mode="floor")
        turn = torch.div(run, self.ranks, rounding_mode="floor")
        row = token + (turn - run) * self.interleave
        return torch.where((token >= 0) & (run - turn * self.ranks == self.rank), row, -1)

    def token(self, row: torch.Tensor) -> torch.Tensor:
        """Token of a row here, in the dtype of ``row``; -1 for a negative row."""
        run = torch.div(row, self.interleave, rounding_mode="floor")
        token = row + (run * (self.ranks - 1) + self.rank) * self.interleave
        return torch.where(row >= 0, token, -1)
