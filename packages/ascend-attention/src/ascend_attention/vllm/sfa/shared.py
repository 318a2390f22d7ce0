"""How a layer's selection reaches the layers behind it that have no indexer of their own."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.errors import InvalidInputError


class SharedSelection:
    """The selection of one layer, kept until the last layer that takes it over has it.

    A graph's memory must not be held beyond the captured region, so nothing is kept that no layer
    will ask for.

    Attributes:
        takers: layers that take the selection over in every step.
    """

    def __init__(self) -> None:
        self.takers = 0
        self._selected: Any = None
        self._left = 0

    def offer(self, selected: Any) -> None:
        """Keep what was selected in this step, if any layer takes it over.

        Args:
            selected: ``[T, K]`` tokens; where ranks share contexts, what they make of it.
        """
        self._selected, self._left = (selected, self.takers) if self.takers else (None, 0)

    def take(self) -> Any:
        """What was offered last.

        Raises:
            InvalidInputError: nothing was offered in this step.
        """
        if self._selected is None:
            raise InvalidInputError(
                "a layer without an indexer",
                "no layer in front of it has selected tokens in this step",
                "Correct indexer_types (or index_topk_pattern) in config.json.",
            )
        selected = self._selected
        self._left -= 1
        if not self._left:
            self._selected = None
        return selected


class DraftSelection:
    """The selection of a draft's first step, which its other steps may take over.

    vLLM's proposer switches (``index_share_for_mtp_iteration`` of GLM-5's config): the first step
    selects for all tokens of a batch, the others attend to what the one token of each request has
    selected there from which drafting goes on.

    Attributes:
        repeating: the steps that run take over what is kept.
    """

    def __init__(self) -> None:
        self.repeating = False
        self._selected: torch.Tensor | None = None

    def keep(self, selected: torch.Tensor) -> None:
        """Keep the selection ``[T, K]`` of a first step."""
        self._selected = selected

    def narrow(self, rows: torch.Tensor) -> None:
        """Keep the rows that drafting goes on from.

        Args:
            rows: ``[R]`` integer, one row of each request.
        """
        if self._selected is not None:
            self._selected = self._selected[rows]

    def take(self, tokens: int) -> torch.Tensor:
        """``[T, K]``, what the requests of a later step have selected in the first.

        Args:
            tokens: of the step, one of each request.

        Raises:
            InvalidInputError: another number of requests than the first step had.
        """
        found = 0 if self._selected is None else self._selected.shape[0]
        if self._selected is None or found < tokens:
            raise InvalidInputError(
                f"a draft step of {tokens} tokens",
                f"the first step has selected for {found} requests",
                "Set index_share_for_mtp_iteration to false in config.json.",
            )
        return self._selected[:tokens]
