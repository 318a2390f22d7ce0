"""The same memory as a CPU tensor and as a tensor of the simulated device.

An npu tensor is a real PrivateUse1 tensor over host memory: a DLPack capsule whose device field is
rewritten. Nothing is copied.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from ascend_ops_core.testing.simulated_npu.memory import MEMORY

_CPU, _NPU = 1, 12  # kDLCPU and kDLExtDev of DLPack

_to_dlpack, _from_dlpack = torch._C._to_dlpack, torch._C._from_dlpack
_place_at = ctypes.c_int64.from_address
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


def to_cpu_alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor over the memory of an npu tensor; detached, storage offset 0."""
    if _is_plain(tensor):
        return _flip(tensor, _CPU, 0)
    plain, conj, neg = _plain(tensor)
    return _restored(_flip(plain, _CPU, 0), conj, neg)


def to_npu_alias(tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
    """Return an npu tensor over the memory of a CPU tensor; detached.

    The memory counts as the device's until the last npu tensor over it is gone.

    Args:
        tensor: on the CPU.
        index: device index.

    Raises:
        torch.OutOfMemoryError: the device would hold more than it has.
    """
    if _is_plain(tensor):
        alias = _flip(tensor, _NPU, index)
        MEMORY.take(alias, tensor, index)
        return alias
    plain, conj, neg = _plain(tensor)
    alias = _flip(plain, _NPU, index)
    MEMORY.take(alias, plain, index)
    return _restored(alias, conj, neg)


def without_owning(alias: torch.Tensor) -> torch.Tensor:
    """Return another CPU tensor over the memory of a CPU alias that does not keep it alive."""
    if alias.is_conj() or alias.is_neg():
        raise NotImplementedError("lazily conjugated or negated tensors cannot be captured here")
    if not alias.numel():
        return torch.empty_strided(alias.shape, alias.stride(), dtype=alias.dtype)
    steps = zip(alias.shape, alias.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in steps)
    room = (ctypes.c_uint8 * (extent * alias.element_size())).from_address(alias.data_ptr())
    flat = torch.frombuffer(room, dtype=torch.uint8).view(alias.dtype)
    return flat.as_strided(alias.shape, alias.stride())


def reinterpreted(base: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:
    """Return a tensor in the storage of ``base``, ``offset`` elements behind its first."""
    reinterpret = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]
    made: torch.Tensor = reinterpret(base, size, stride, offset)
    return made


def _flip(tensor: torch.Tensor, kind: int, index: int) -> torch.Tensor:
    capsule = _to_dlpack(tensor)
    # DLTensor starts with: void* data; int32 device_type; int32 device_id, all little-endian.
    _place_at(_pointer_of(capsule, b"dltensor") + 8).value = kind | index << 32
    return _from_dlpack(capsule)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether DLPack carries all of it."""
    return not (tensor.requires_grad or tensor.is_neg() or tensor.is_conj())


def _plain(tensor: torch.Tensor) -> tuple[torch.Tensor, bool, bool]:
    """Without autograd and without the lazy bits, which DLPack does not carry."""
    conj, neg = tensor.is_conj(), tensor.is_neg()
    if tensor.requires_grad:
        tensor = tensor.detach()
    if conj:
        tensor = torch._conj(tensor)
    if neg:
        tensor = torch._neg_view(tensor)
    return tensor, conj, neg


def _restored(tensor: torch.Tensor, conj: bool, neg: bool) -> torch.Tensor:
    if conj:
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if neg else tensor
