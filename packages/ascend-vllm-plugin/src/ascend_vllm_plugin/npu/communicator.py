"""Collectives between NPUs, and between simulated ones."""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase


class HCCLCommunicator(DeviceCommunicatorBase):
    """Collectives of HCCL through torch.distributed. Not run on hardware."""


class SimulatedCommunicator(DeviceCommunicatorBase):
    """Collectives of gloo on the host memory that simulated devices compute in.

    Nothing is copied for them, so they count as work of the device, as HCCL's would.
    """

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place."""
        super().all_reduce(_on_host(input_))
        return input_

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """All ranks' tensors side by side along ``dim``."""
        return self._on_device(super().all_gather(_on_host(input_), dim))

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """This rank's part along ``dim`` of the sum over the ranks."""
        return self._on_device(super().reduce_scatter(_on_host(input_), dim))

    def gather(self, input_: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        """All ranks' tensors along ``dim`` on rank ``dst``; None elsewhere."""
        gathered = super().gather(_on_host(input_), dst, dim)
        return None if gathered is None else self._on_device(gathered)

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        """Overwrite ``tensor`` with that of rank ``src``."""
        super().broadcast(_on_host(tensor), src)
        return tensor

    def send(self, tensor: torch.Tensor, dst: int | None = None) -> None:
        """Send to rank ``dst``, by default the next one."""
        super().send(_on_host(tensor), dst)

    def recv(self, size: torch.Size, dtype: torch.dtype, src: int | None = None) -> torch.Tensor:
        """Receive from rank ``src``, by default the one before."""
        source = (self.rank_in_group - 1) % self.world_size if src is None else src
        received = torch.empty(size, dtype=dtype)
        torch.distributed.recv(received, self.ranks[source], self.device_group)
        return self._on_device(received)

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        from ascend_ops_core.testing.simulated_npu import to_npu_alias

        index: Any = self.device.index
        return to_npu_alias(tensor, index or 0)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    from ascend_ops_core.testing.simulated_npu import to_cpu_alias

    return to_cpu_alias(tensor)
