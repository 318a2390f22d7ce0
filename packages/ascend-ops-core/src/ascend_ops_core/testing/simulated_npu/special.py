"""Operators that need more than running the CPU's kernel on aliases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ascend_ops_core.testing.simulated_npu.aliases import (
    reinterpreted,
    to_cpu_alias,
    to_npu_alias,
    without_owning,
)
from ascend_ops_core.testing.simulated_npu.counters import COUNTERS, host_waits
from ascend_ops_core.testing.simulated_npu.graphs import GraphError, capturing
from ascend_ops_core.testing.simulated_npu.pinned import is_pinned, pinned

SPECIAL: dict[str, Callable[..., Any]] = {}
"""By qualified name."""

_Kernel = Callable[..., Any]


def special(name: str) -> Callable[[_Kernel], _Kernel]:
    """Enter a function as what ``name`` does on the device."""

    def enter(kernel: _Kernel) -> _Kernel:
        SPECIAL[name] = kernel
        return kernel

    return enter


@special("aten::_copy_from")
def copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """Copy between devices, or within one with another dtype or layout; returns ``target``.

    The host waits for a copy to it, and for one from it, unless ``non_blocking`` and its memory is
    pinned. A copy that does not wait is done at once all the same.
    """
    from_npu, to_npu = source.device.type == "npu", target.device.type == "npu"
    if from_npu and not to_npu:
        if not (non_blocking and is_pinned(target)):
            host_waits("a copy to the host")
        COUNTERS.device_to_host += 1
    elif to_npu and not from_npu:
        if not (non_blocking and is_pinned(source)):
            host_waits("a copy from pageable host memory")
        COUNTERS.host_to_device += 1
    read = to_cpu_alias(source) if from_npu else source
    write = to_cpu_alias(target) if to_npu else target.detach()
    graph = capturing()
    if graph is not None:
        graph.keep_contents(write)
        again_read = without_owning(read) if from_npu else read
        again_write = without_owning(write) if to_npu else write
        graph.add("aten::copy_", lambda: again_write.copy_(again_read), [read, write])
    write.copy_(read)
    return target


def to_copy(
    tensor: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> torch.Tensor:
    """``aten::_to_copy``: a copy to the host that does not wait goes to pinned memory."""
    if non_blocking and device is not None and device.type == "cpu":
        shape = torch.empty_like(
            tensor, dtype=dtype, device="meta", memory_format=memory_format or torch.preserve_format
        )
        host = pinned(torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype))
        copied: torch.Tensor = host.copy_(tensor, non_blocking=True)
        return copied
    made: torch.Tensor = torch.ops.aten._to_copy.default._op_dk(
        torch._C.DispatchKey.CompositeExplicitAutograd,
        tensor,
        dtype=dtype,
        layout=layout,
        device=device,
        pin_memory=pin_memory,
        non_blocking=non_blocking,
        memory_format=memory_format,
    )
    return made


@special("aten::_copy_from_and_resize")
def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Copy, giving ``target`` the source's shape first."""
    if target.shape != source.shape:
        target.resize_(source.shape)
    return copy_from(source, target)


@special("aten::_local_scalar_dense")
def local_scalar(tensor: torch.Tensor) -> Any:
    """``item()``: a copy to the host that the host waits for."""
    host_waits("item()")
    COUNTERS.device_to_host += 1
    return to_cpu_alias(tensor).item()


@special("aten::as_strided")
def as_strided(
    tensor: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None
) -> torch.Tensor:
    """A view anywhere in the tensor's storage."""
    here = int(tensor.storage_offset())
    start = here if storage_offset is None else storage_offset
    extent = start + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1
    available = tensor.untyped_storage().nbytes() // tensor.element_size()
    if all(size) and (extent > available or start < 0):
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset "
            f"{start} need {extent} elements, the storage has {available}"
        )
    return reinterpreted(tensor, size, stride, start - here)


@special("aten::resize_")
def resize(tensor: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
    """Change the shape in place; new memory keeps the old elements."""
    count = 1
    for one in size:
        count *= int(one)
    if count <= tensor.untyped_storage().nbytes() // tensor.element_size() - (
        tensor.storage_offset()
    ):
        strides = torch.empty(size, device="meta").stride()
        tensor.data = reinterpreted(tensor.detach(), size, strides, 0)
        return tensor
    made = torch.empty(size, dtype=tensor.dtype)
    kept = tensor.numel()
    if kept:
        made.view(-1)[:kept].copy_(to_cpu_alias(tensor).reshape(-1))
    return replace_contents(tensor, made)


@special("aten::set_.source_Tensor")
def set_from_tensor(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Make ``tensor`` another name for ``source``'s memory."""
    tensor.data = source
    return tensor


@special("aten::set_.source_Storage_storage_offset")
def set_from_storage(
    tensor: torch.Tensor, source: Any, storage_offset: int, size: Any, stride: Any = ()
) -> torch.Tensor:
    """Refused: a tensor cannot be put into an existing storage from Python."""
    raise NotImplementedError(
        "aten::set_ with a storage is not modelled by the simulated NPU; make a view of a tensor "
        "that has this storage (as_strided, view)"
    )


@special("aten::set_.source_Storage")
def set_from_whole_storage(tensor: torch.Tensor, source: Any) -> torch.Tensor:
    """Refused as the form with sizes is."""
    return set_from_storage(tensor, source, 0, ())


@special("aten::record_stream")
def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Nothing: memory is not reused before its work is done, since that is done at once."""


def convolution(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *options: Any
) -> torch.Tensor:
    """``convolution_overrideable``, the form in which convolutions reach foreign devices."""
    operands = [None if one is None else to_cpu_alias(one) for one in (input, weight, bias)]
    result: torch.Tensor = torch.ops.aten.convolution.default(*operands, *options)
    made = to_npu_alias(result, input.device.index)
    graph = capturing()
    if graph is not None:
        again = [None if one is None else without_owning(one) for one in operands]
        graph.add(
            "aten::convolution",
            lambda: result.copy_(torch.ops.aten.convolution.default(*again, *options)),
            [one for one in operands if one is not None],
            [result],
        )
    return made


def convolution_backward(
    grad: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Any,
) -> tuple[torch.Tensor | None, ...]:
    """``convolution_backward_overrideable``."""
    if capturing() is not None:
        raise GraphError("the backward pass of a convolution cannot be captured here")
    bias_size = weight.shape[1] * groups if transposed else weight.shape[0]
    results = torch.ops.aten.convolution_backward.default(
        to_cpu_alias(grad),
        to_cpu_alias(input),
        to_cpu_alias(weight),
        [bias_size],
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        output_mask,
    )
    index = input.device.index
    return tuple(None if one is None else to_npu_alias(one, index) for one in results)


def replace_contents(tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Give an npu tensor the memory and shape of a fresh CPU tensor; returns the npu tensor."""
    if capturing() is not None and tensor.numel() > 0:
        raise GraphError(
            f"a tensor is resized to {tuple(made.shape)} inside a captured region, which gives it "
            "other memory. Allocate it in its full size before the region."
        )
    tensor.data = to_npu_alias(made, tensor.device.index)
    return tensor
