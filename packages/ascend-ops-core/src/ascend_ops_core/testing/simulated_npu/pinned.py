"""Pinned host memory: CPU tensors that are marked, since there is no device to pin them for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._device import _device_constructors

_FACTORIES = (
    "arange",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "tensor",
    "zeros",
    "zeros_like",
)

_pinned: dict[int, StorageWeakRef] = {}


def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """Return the tensor if it is pinned, else a pinned copy, as torch does.

    Raises:
        RuntimeError: it is not a CPU tensor.
    """
    if tensor.device.type != "cpu":
        raise RuntimeError(f"cannot pin {tensor.device} memory: only dense CPU tensors can be")
    return tensor if is_pinned(tensor) else pinned(tensor.clone())


def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    """Whether a tensor lies in pinned memory."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return False
    storage = tensor.untyped_storage()
    found = _pinned.get(storage._cdata)
    return found is not None and not found.expired()


def install_pinned() -> None:
    """Let ``pin_memory=True``, ``Tensor.pin_memory`` and ``Tensor.is_pinned`` work."""
    # `with torch.device(...)` keeps a set of the factories, which must be torch's own.
    _device_constructors()
    torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign, assignment]
    torch.Tensor.is_pinned = is_pinned  # type: ignore[method-assign, assignment]
    for name in _FACTORIES:
        setattr(torch, name, _pinning(getattr(torch, name)))


def _pinning(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        made = factory(*args, **kwargs)
        if pin_memory:
            if made.device.type != "cpu":
                raise RuntimeError(f"{factory.__name__}: only CPU memory can be pinned")
            pinned(made)
        return made

    return make


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Mark the memory of a CPU tensor as pinned; returns the tensor."""
    for key in [key for key, reference in _pinned.items() if reference.expired()]:
        del _pinned[key]
    storage = tensor.untyped_storage()
    _pinned[storage._cdata] = StorageWeakRef(storage)
    return tensor
