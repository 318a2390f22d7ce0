"""How a layer's selection reaches the layers behind it that have no indexer of their own, and the
draft tokens behind the first that a draft's layer makes.
"""

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


class RepeatedSelection:
    """The selection of a draft's layer, which later draft tokens of the same round take over.

    GLM-5 (``index_share_for_mtp_iteration``): the first draft token of a round is made with a
    selection of its own, the others attend to the tokens of that selection, whatever came behind.

    Attributes:
        kept: selections are kept, as those of a draft that repeats them.
        reusing: the next steps are those of later draft tokens.
    """

    def __init__(self) -> None:
        self.kept = self.reusing = False
        self._selected: torch.Tensor | None = None

    def offer(self, selected: torch.Tensor) -> None:
        """Keep ``selected [T, K]`` of the first draft token's step, if that is asked for."""
        if self.kept:
            self._selected = selected

    def repeat(self, *, reusing: bool) -> None:
        """Choose whether the next steps take the selection over, or make one that is kept."""
        self.kept, self.reusing = True, reusing

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Of them keep one row for each request: ``rows [R]``, from which its draft goes on."""
        if self._selected is not None:
            self._selected = self._selected[rows]

    def take(self, tokens: int) -> torch.Tensor:
        """``[tokens, K]`` of a later draft token's step.

        Raises:
            InvalidInputError: there is no selection for so many requests.
        """
        if self._selected is None or len(self._selected) < tokens:
            held = 0 if self._selected is None else len(self._selected)
            raise InvalidInputError(
                f"{tokens} requests that draft another token",
                f"the first one was selected for {held}",
                "Remove index_share_for_mtp_iteration from config.json.",
            )
        return self._selected[:tokens]
