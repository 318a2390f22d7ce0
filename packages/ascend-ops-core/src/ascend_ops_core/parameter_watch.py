"""Tells whether parameters are still where they were, so that views of them may be kept."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn


class ParameterWatch:
    """Some parameters of some modules, by name: a module may be given others, or something else.

    Args:
        parameters: modules and the names of their parameters.
    """

    def __init__(self, parameters: Iterable[tuple[nn.Module, str]]) -> None:
        # Attributes of a module cost several times as much, and a step asks for hundreds.
        self._places = [(module._parameters, name) for module, name in parameters]

    def addresses(self) -> tuple[int, ...]:
        """Where the data of every parameter lies now; 0 for one that is a parameter no more."""
        found = [place.get(name) for place, name in self._places]
        return tuple([0 if one is None else one.data_ptr() for one in found])
