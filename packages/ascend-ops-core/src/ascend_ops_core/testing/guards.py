"""Tensors between two fences, so that reads and writes out of bounds show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# No tile is larger than the unified buffer, so a tile that starts inside ends within the fence.
_FENCE_BYTES = 256 * 1024

_ALLOCATIONS = {
    torch.empty,
    torch.empty_like,
    torch.zeros,
    torch.zeros_like,
    torch.ones,
    torch.full,
    torch.full_like,
    torch.Tensor.new_empty,
    torch.Tensor.new_zeros,
    torch.Tensor.new_full,
}


class Guarded:
    """A copy of a CPU tensor inside a larger buffer.

    The fences hold NaN (or the most negative integer), so a kernel that reads past an end
    computes nonsense and one that writes there is caught by :meth:`assert_fences`.

    Attributes:
        tensor: the copy, with the shape and strides of the original.
    """

    def __init__(self, original: torch.Tensor) -> None:
        spanned = _span(original)
        fence = -(-_FENCE_BYTES // original.element_size())
        self._buffer = torch.empty(fence + spanned + fence, dtype=original.dtype)
        self._buffer.fill_(_fence_value(original.dtype))
        self.tensor = self._buffer.as_strided(original.shape, original.stride(), fence)
        self.tensor.copy_(original)
        # What lies between the rows of a strided view must survive as well.
        inside = torch.zeros(self._buffer.shape, dtype=torch.bool)
        inside.as_strided(original.shape, original.stride(), fence).fill_(True)
        self._outside = ~inside
        self._kept = self._bits()

    def assert_fences(self) -> None:
        """Fail if anything outside of the tensor was written."""
        changed = (self._bits() != self._kept).nonzero()
        assert changed.numel() == 0, f"written out of bounds at byte {int(changed[0])}"

    def _bits(self) -> torch.Tensor:
        bits = self._buffer.view(torch.uint8).view(self._buffer.shape[0], -1)
        return bits[self._outside].clone().flatten()


def guarded(arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Guarded]]:
    """Copy every tensor of ``arguments`` into fenced memory.

    Returns:
        The arguments with the copies, and their guards.
    """
    guards: list[Guarded] = []

    def copied(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            guards.append(Guarded(value))
            return guards[-1].tensor
        if isinstance(value, (list, tuple)):
            return type(value)(copied(one) for one in value)
        return value

    return tuple(copied(value) for value in arguments), guards


@contextmanager
def fenced_allocations() -> Iterator[list[Guarded]]:
    """Give the tensors that are allocated inside this block fences as well.

    Yields:
        The guards, which grow with every allocation.
    """
    mode = _Fencing()
    with mode:
        yield mode.guards


class _Fencing(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.guards: list[Guarded] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _ALLOCATIONS and result.device.type == "cpu":
            with torch._C.DisableTorchFunction():
                self.guards.append(Guarded(result))
            return self.guards[-1].tensor
        return result


def _span(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)


def _fence_value(dtype: torch.dtype) -> float | int | bool:
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point:
        return float("nan")
    return torch.iinfo(dtype).min if dtype.is_signed else torch.iinfo(dtype).max
