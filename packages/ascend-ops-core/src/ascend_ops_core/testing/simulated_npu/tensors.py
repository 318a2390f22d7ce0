"""What Python-level methods of tensors do that expect a device in C++."""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.testing.simulated_npu.special import record_stream

_deepcopy, _reduce_ex = torch.Tensor.__deepcopy__, torch.Tensor.__reduce_ex__
_record_stream = torch.Tensor.record_stream


def rebuild(values: torch.Tensor, device: str, requires_grad: bool) -> torch.Tensor:
    """Return the npu tensor of a pickle that holds its values on the CPU."""
    return values.to(device).requires_grad_(requires_grad)


def _is_ours(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.device.type == "npu"


def deepcopy(self: torch.Tensor, memo: dict[int, Any]) -> Any:
    """Copy the values; storages of the device cannot be cloned from Python."""
    if not _is_ours(self):
        return _deepcopy(self, memo)
    if id(self) not in memo:
        copied = self.detach().clone(memory_format=torch.preserve_format)
        memo[id(self)] = copied.requires_grad_(self.requires_grad)
    return memo[id(self)]


def reduce_ex(self: torch.Tensor, protocol: Any) -> Any:
    """Pickle the values as a CPU tensor, and the device; sharing between tensors is lost."""
    if not _is_ours(self):
        return _reduce_ex(self, protocol)
    return rebuild, (self.detach().cpu(), str(self.device), self.requires_grad)


def _record(self: torch.Tensor, stream: Any) -> None:
    if self.device.type == "npu":
        record_stream(self, stream)
    else:
        _record_stream(self, stream)


def install_tensor_methods() -> None:
    """Replace the methods, and let ``torch.load`` take pickled npu tensors."""
    torch.Tensor.__deepcopy__ = deepcopy  # type: ignore[method-assign]
    torch.Tensor.__reduce_ex__ = reduce_ex  # type: ignore[method-assign]
    torch.Tensor.record_stream = _record  # type: ignore[method-assign, assignment]
    torch.serialization.add_safe_globals([rebuild])
