"""How a layer's selection reaches the layers behind it that have no indexer of their own."""

from __future__ import annotations

from typing import Any

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
