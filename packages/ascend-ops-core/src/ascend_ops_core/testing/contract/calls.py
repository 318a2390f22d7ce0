"""What a call passed, without its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class ArgumentFacts:
    """A tensor argument.

    Attributes:
        dtype: its dtype.
        shape: its shape.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True)
class Call:
    """One call that matched its schema.

    Attributes:
        op: operator name, with its overload if it has one: ``"npu_format_cast.Tensor"``.
        schema: the schema it matched.
        arguments: by name; tensors as :class:`ArgumentFacts`, lists of them as lists, other values
            as they are. Arguments equal to their default may be absent.
        family: device family that the meta kernel assumed.
        checked: False if the wheel has no meta kernel, so that only the schema was checked.
    """

    op: str
    schema: str
    arguments: Mapping[str, Any]
    family: str
    checked: bool

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"{self.op}({shown})"


def describe(
    op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name, tensors replaced by their facts."""
    names = [argument.name for argument in op._schema.arguments]
    named = dict(zip(names, args, strict=False)) | dict(kwargs)
    return {name: _facts(value) for name, value in named.items()}


def _facts(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ArgumentFacts(value.dtype, tuple(value.shape))
    if isinstance(value, (list, tuple)):
        return [_facts(one) for one in value]
    return value
