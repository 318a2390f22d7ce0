"""A checkpoint's tensors as data: which there are, and where each goes in a model.

One table of rules drives loading and checking, so that a bad checkpoint is reported whole: every
missing, unexpected, wrongly shaped or wrongly stored tensor at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ascend_ops_core.checkpoint.mapped_pages import release_pages

__all__ = ["CheckpointError", "TensorRule", "WeightTable", "raise_for"]

_LOADABLE_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_LOADABLE_INTEGERS = (torch.int64, torch.int32)
_MOST_REPORTED = 40


class CheckpointError(ValueError):
    """A checkpoint that does not fit the model; the message lists every problem."""


@dataclass(frozen=True)
class TensorRule:
    """Where one checkpoint tensor goes.

    Attributes:
        shape: its full shape in the checkpoint.
        param: name of the model's parameter.
        target: index into the parameter.
        source: index into the tensor, after ``view``; selects this rank's part.
        view: shape in which the tensor is read, or None for its own.
        below: for a table of ids, the number that all of them lie below; None for weights.
        optional: may be absent.
    """

    shape: tuple[int, ...]
    param: str
    target: tuple[int | slice, ...] = ()
    source: tuple[slice, ...] = ()
    view: tuple[int, ...] | None = None
    below: int | None = None
    optional: bool = False

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes that the checkpoint may have."""
        return (self.shape,)

    @property
    def loadable(self) -> tuple[torch.dtype, ...]:
        """Dtypes in which the checkpoint may store it."""
        return _LOADABLE_FLOATS if self.below is None else _LOADABLE_INTEGERS

    @property
    def filled(self) -> str | None:
        """The model's parameter that it goes to, if any."""
        return self.param

    def value_problems(self, name: str, tensor: torch.Tensor) -> list[str]:
        """Ids that no expert has, which would fail only when a token meets them."""
        if self.below is None:
            return []
        low, high = (int(v) for v in tensor.aminmax())
        if low >= 0 and high < self.below:
            return []
        return [f"values of {name} lie in [{low}, {high}], expected [0, {self.below - 1}]"]

    @property
    def checked_module(self) -> str | None:
        """A module with ``process_weights_after_loading``, which is called once all is loaded."""
        return None

    def load(self, tensor: torch.Tensor, model: nn.Module) -> None:
        """Copy this rank's part of ``tensor`` to its place in ``model``."""
        part = tensor if self.view is None else tensor.view(self.view)
        model.get_parameter(self.param).data[self.target].copy_(part[self.source])


class WeightTable:
    """All tensors of one model.

    Args:
        rules: rule by checkpoint name.
        ignored_prefixes: names of other models in the same checkpoint.
    """

    def __init__(self, rules: Mapping[str, TensorRule], ignored_prefixes: tuple[str, ...]) -> None:
        self.rules = dict(rules)
        self.ignored_prefixes = ignored_prefixes

    def problems(self, found: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> list[str]:
        """Every way in which a checkpoint's tensors do not fit, one line each.

        Args:
            found: shape and dtype by name.
        """
        lines = []
        absent = sorted(set(self.rules) - set(found))
        # Only names that are in question are offered: the rest of a model is full of close ones.
        strangers = sorted(
            name
            for name in set(found) - set(self.rules)
            if not name.startswith(self.ignored_prefixes)
        )
        near = _Nearest()
        for name in absent:
            if not self.rules[name].optional:
                lines.append(
                    f"missing {name} {list(self.rules[name].shape)}{near(name, strangers)}"
                )
        for name in sorted(found):
            if name.startswith(self.ignored_prefixes):
                continue
            shape, dtype = found[name]
            rule = self.rules.get(name)
            if rule is None:
                lines.append(f"unexpected {name} {list(shape)}{near(name, absent)}")
                continue
            if dtype not in rule.loadable:
                lines.append(
                    f"dtype of {name} is {_short(dtype)}, loadable are "
                    f"{', '.join(map(_short, rule.loadable))}"
                )
            if shape not in rule.shapes:
                expected = " or ".join(str(list(one)) for one in rule.shapes)
                lines.append(f"shape of {name} is {list(shape)}, expected {expected}")
        return lines

    def load(self, model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill the model's parameters.

        Args:
            model: holds the parameters that the rules name.
            weights: name and tensor, in any order, each name once.

        Returns:
            Names of the parameters that were filled.

        Raises:
            CheckpointError: some tensors do not fit. A tensor that does not fit is never copied.
        """
        found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        bad_values = []
        for name, tensor in weights:
            if name.startswith(self.ignored_prefixes):
                continue
            found[name] = tuple(tensor.shape), tensor.dtype
            rule = self.rules.get(name)
            if (
                rule is not None
                and tuple(tensor.shape) in rule.shapes
                and tensor.dtype in rule.loadable
            ):
                rule.load(tensor, model)
                bad_values += rule.value_problems(name, tensor)
            release_pages(tensor)
        raise_for(self.problems(found) + bad_values)
        checked = {rule.checked_module: None for rule in self.rules.values()}
        for module in filter(None, checked):
            loaded: Any = model.get_submodule(module)
            loaded.process_weights_after_loading()
        filled = (self.rules[name].filled for name in found)
        return {name for name in filled if name is not None}


class _Nearest:
    """Offers close names for the first problems; a search takes long among many thousands."""

    def __init__(self) -> None:
        self._left = _MOST_REPORTED

    def __call__(self, name: str, others: list[str]) -> str:
        if not self._left:
            return ""
        self._left -= 1
        close = difflib.get_close_matches(name, others, n=1, cutoff=0.8)
        return f" (closest: {close[0]})" if close else ""


def raise_for(problems: list[str]) -> None:
    """Raise one :class:`CheckpointError` that lists all problems, if there are any."""
    if not problems:
        return
    shown = problems[:_MOST_REPORTED]
    more = len(problems) - len(shown)
    text = "\n".join(f"  - {line}" for line in shown)
    if more:
        text += f"\n  - and {more} more"
    raise CheckpointError(
        f"the checkpoint does not fit the config: {len(problems)} problem(s)\n{text}\n"
        "The model was not loaded. Check that config.json and the safetensors files belong "
        "together, in the tensor names that the model was published with."
    )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
