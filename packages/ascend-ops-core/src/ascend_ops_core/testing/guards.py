"""Tensors between two fences, so that reads and writes out of bounds show."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# No tile is larger than the unified buffer, so a tile that starts inside ends within the fence.
_FENCE_BYTES = 256 * 1024

_NUMBERS = itertools.cycle(range(1, 64))

# An integer of the same size, the bits of a NaN in it, and the place of a number in the NaN's
# fraction, which is the same place in every dtype, so that conversions keep it.
_NAN_BITS = {
    torch.bfloat16: (torch.int16, 0x7FC0, 0),
    torch.float16: (torch.int16, 0x7E00, 3),
    torch.float32: (torch.int32, 0x7FC00000, 16),
    torch.float64: (torch.int64, 0x7FF8 << 48, 45),
}

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

    The fences hold NaN (or integers near the lowest), so a kernel that reads past an end computes
    nonsense and one that writes there is caught by :meth:`assert_fences`. Neighbours have other
    NaNs: a kernel that reads and writes past the end carries one fence into another.

    Attributes:
        tensor: the copy, with the shape and strides of the original.
    """

    def __init__(self, original: torch.Tensor) -> None:
        spanned = _span(original)
        fence = -(-_FENCE_BYTES // original.element_size())
        self._buffer = torch.empty(fence + spanned + fence, dtype=original.dtype)
        _fill_with_fence(self._buffer, next(_NUMBERS))
        self.tensor = self._buffer.as_strided(original.shape, original.stride(), fence)
        self.tensor.copy_(original)
        self._kept = self._buffer.clone()
        self._place = (original.shape, original.stride(), fence)

    def assert_fences(self) -> None:
        """Fail if anything outside of the tensor was written, between its rows as well."""
        self._kept.as_strided(*self._place).copy_(self.tensor)
        kept, found = self._kept.view(torch.uint8), self._buffer.view(torch.uint8)
        if not torch.equal(kept, found):
            byte = int((kept != found).nonzero()[0])
            raise AssertionError(f"written out of bounds at byte {byte}")


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


def _fill_with_fence(buffer: torch.Tensor, number: int) -> None:
    """Fill with NaN, or with an integer near the lowest, that tells ``number`` below 64."""
    dtype = buffer.dtype
    if dtype in _NAN_BITS:
        integer, nan, shift = _NAN_BITS[dtype]
        buffer.view(integer).fill_(nan + (number << shift))
    elif dtype.is_floating_point:
        buffer.fill_(float("nan"))
    elif dtype == torch.bool:
        buffer.fill_(True)
    elif dtype.is_signed:
        buffer.fill_(torch.iinfo(dtype).min + number)
    else:
        buffer.fill_(torch.iinfo(dtype).max - number)
