"""The cosines and sines of one step, gathered once and shared by all layers.

vllm-ascend keeps these in module globals. Here one object holds them: whoever runs the model makes
it, gives it to the layers, and calls :meth:`RopeGlobalState.update_cos_sin` before each step.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.layers.rotary_cache import RotaryCache


class RopeGlobalState:
    """The tables of a model by name, and buffers for the rows of a step.

    The buffers keep their addresses, so that a captured graph can read them. Rows behind a step's
    tokens rotate by nothing: cosine 1, sine 0.

    Args:
        tables: for example ``{"main": ..., "compressed": ...}``, at least one.
        max_tokens: most tokens of a step, padding included.
        drafts: further sets of buffers, one for each draft step whose rows must outlive the
            next update.
    """

    def __init__(self, tables: Mapping[str, RotaryCache], max_tokens: int, drafts: int = 0) -> None:
        if not tables or max_tokens < 1 or drafts < 0:
            raise InvalidInputError(
                f"{len(tables)} tables, max_tokens={max_tokens}, drafts={drafts}",
                "a step has at least one table and one token, and no negative number of drafts",
                "Pass the tables of the model and the scheduler's limit.",
            )
        self.tables = dict(tables)
        self.max_tokens = max_tokens
        self._buffers = [
            {name: _identity(table, max_tokens) for name, table in tables.items()}
            for _ in range(1 + drafts)
        ]

    def set_cos_and_sin(self, max_position: int) -> None:
        """Extend every table to ``max_position`` positions, before graphs are captured."""
        for table in self.tables.values():
            table.reserve(max_position)

    def update_cos_sin(
        self, positions: torch.Tensor, padded: int | None = None, draft: int = 0
    ) -> None:
        """Gather the rows of a step.

        Args:
            positions: ``[T]`` int32 or int64.
            padded: tokens including padding, whose rows become the identity.
            draft: which set of buffers, 0 being the target model's.

        Raises:
            InvalidInputError: more tokens than ``max_tokens``, fewer padded than real ones, or a
                draft that there is no buffer for.
        """
        tokens = positions.shape[0]
        end = tokens if padded is None else padded
        if not tokens <= end <= self.max_tokens:
            raise InvalidInputError(
                f"{tokens} tokens padded to {end}",
                f"a step has at most {self.max_tokens}, padding included",
                "Make the state for the scheduler's limit.",
            )
        buffers = self._set(draft)
        for name, table in self.tables.items():
            cos, sin = buffers[name]
            rows = table.gather(positions)
            cos[:tokens].copy_(rows[0])
            sin[:tokens].copy_(rows[1])
            cos[tokens:end].fill_(1.0)
            sin[tokens:end].zero_()

    def get_cos_and_sin_slice(
        self, tokens: int, name: str | None = None, draft: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the first ``tokens`` rows of the step, ``[tokens, R / 2]`` float32.

        Raises:
            InvalidInputError: no such table or draft, or more tokens than ``max_tokens``.
        """
        if tokens > self.max_tokens:
            raise InvalidInputError(
                f"{tokens} tokens", f"a step has at most {self.max_tokens}", "Take fewer rows."
            )
        cos, sin = self._set(draft)[self._named(name)]
        return cos[:tokens], sin[:tokens]

    def get_cos_and_sin_mla(
        self, positions: torch.Tensor, use_cache: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows for positions, shaped ``[T, 1, R / 2]`` for the heads of MLA.

        Args:
            positions: ``[T]``.
            use_cache: take the rows that :meth:`update_cos_sin` gathered for these positions.
        """
        name = self._named(None)
        if use_cache:
            cos, sin = self.get_cos_and_sin_slice(positions.shape[0])
        else:
            cos, sin = self.tables[name].gather(positions)
        return cos[:, None], sin[:, None]

    def get_cos_and_sin_dsa(
        self, positions: torch.Tensor, use_cache: bool = False, draft: int = 0
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Rows of every table for positions, by name; ``use_cache`` as for MLA."""
        if use_cache:
            tokens = positions.shape[0]
            return {name: self.get_cos_and_sin_slice(tokens, name, draft) for name in self.tables}
        return {name: table.gather(positions) for name, table in self.tables.items()}

    def get_full_cos_and_sin_dsa(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """The whole tables, by name."""
        return {name: (table.cos, table.sin) for name, table in self.tables.items()}

    def _named(self, name: str | None) -> str:
        if name is None:
            return next(iter(self.tables))
        if name not in self.tables:
            raise InvalidInputError(
                f"rotary table {name!r}", f"there are {', '.join(self.tables)}", "Name one of them."
            )
        return name

    def _set(self, draft: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        if not 0 <= draft < len(self._buffers):
            raise InvalidInputError(
                f"draft {draft}",
                f"there are buffers for 0 to {len(self._buffers) - 1}",
                "Make the state with as many drafts as the proposer has steps.",
            )
        return self._buffers[draft]


class RopeDataProxy:
    """One table's rows of the current step, looked up when they are read.

    Args:
        state: where the rows are.
        name: the table.
        draft: the set of buffers.
    """

    def __init__(self, state: RopeGlobalState, name: str, draft: int = 0) -> None:
        state.get_cos_and_sin_slice(0, name, draft)  # refuses a wrong name now, not in a forward
        self._state, self._name, self._draft = state, name, draft

    def rows(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``cos`` and ``sin`` of the first ``tokens`` tokens."""
        return self._state.get_cos_and_sin_slice(tokens, self._name, self._draft)


def _identity(table: RotaryCache, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (rows, table.cos.shape[1])
    return table.cos.new_ones(shape), table.sin.new_zeros(shape)
