"""Checks of arguments that format their message only when they fail."""

from __future__ import annotations

from collections.abc import Collection

import torch

from ascend_ops_core.errors import InvalidInputError

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
INDICES = (torch.int32, torch.int64)


def require_shape(name: str, tensor: torch.Tensor, *shape: int | None) -> None:
    """Refuse a tensor of another shape.

    Args:
        name: of the argument.
        tensor: what was given.
        shape: the size of each axis; None where any size will do.

    Raises:
        InvalidInputError: another number of axes, or another size.
    """
    given = tensor.shape
    if len(given) != len(shape) or any(
        wanted is not None and size != wanted for size, wanted in zip(given, shape, strict=False)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise InvalidInputError(
            f"{name} of shape {list(given)}", f"its shape is [{wanted}]", "Pass such a tensor."
        )


def require_dtype(name: str, tensor: torch.Tensor, allowed: Collection[torch.dtype]) -> None:
    """Refuse a tensor of a dtype that is not in ``allowed``.

    Raises:
        InvalidInputError: another dtype.
    """
    if tensor.dtype not in allowed:
        names = ", ".join(str(one).removeprefix("torch.") for one in allowed)
        raise InvalidInputError(
            f"{name} of {tensor.dtype}", f"its dtype is one of {names}", f"Convert {name}."
        )


def require_at_least(name: str, value: int, least: int) -> None:
    """Refuse an integer below ``least``.

    Raises:
        InvalidInputError: it is smaller.
    """
    if value < least:
        raise InvalidInputError(f"{name}={value}", f"it is at least {least}", f"Correct {name}.")
