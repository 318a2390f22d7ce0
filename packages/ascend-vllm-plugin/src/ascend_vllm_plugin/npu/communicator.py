"""Collectives between NPUs, and between simulated ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from ascend_fused_moe.eplb.exchange import Parcel, swap_parcels
from vllm.distributed.device_communicators.all2all import AgRsAll2AllManager
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase


class _NPUCommunicator(DeviceCommunicatorBase):
    """What HCCL and its simulation have in common."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.use_all2all:
            # vLLM's runner asks the expert-parallel group of every replica for one.
            self.all2all_manager = AgRsAll2AllManager(self.cpu_group)


class HCCLCommunicator(_NPUCommunicator):
    """Collectives of HCCL through torch.distributed. Not run on hardware."""

    def all_to_all_into(self, received: torch.Tensor, parts: torch.Tensor) -> None:
        """Part ``j`` of ``parts [P, ...]`` goes to rank ``j``; all ranks' for this one come here.

        Nothing is allocated, so a captured graph repeats it over the same memory.

        Args:
            received: ``[P, ...]``, contiguous, written.
            parts: the same shape, contiguous.
        """
        torch.distributed.all_to_all_single(received, parts, group=self.device_group)

    def swap(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        """Send tensors to ranks and fill others with what ranks send, all at once.

        Args:
            sends: rank of this group, and a contiguous tensor to send to it.
            receives: rank, and a contiguous tensor to fill; between two ranks in the order sent.
        """
        swap_parcels(self.device_group, sends, receives)


class SimulatedCommunicator(_NPUCommunicator):
    """Collectives of gloo on the host memory that simulated devices compute in.

    Nothing is copied for them, so they count as work of the device, as HCCL's would, and captured
    graphs hold them.
    """

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place."""
        _record("all_reduce", super().all_reduce, [], [input_])
        return input_

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """All ranks' tensors side by side along ``dim``."""
        gather, shape = super().all_gather, list(input_.shape)
        shape[dim] *= self.world_size
        return self._new("all_gather", lambda one: gather(one, dim), input_, shape)

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """This rank's part along ``dim`` of the sum over the ranks."""
        scatter, shape = super().reduce_scatter, list(input_.shape)
        shape[dim] //= self.world_size
        return self._new("reduce_scatter", lambda one: scatter(one, dim), input_, shape)

    def all_to_all_into(self, received: torch.Tensor, parts: torch.Tensor) -> None:
        """See :meth:`HCCLCommunicator.all_to_all_into`."""
        _record(
            "all_to_all",
            lambda read, write: torch.distributed.all_to_all_single(
                write, read, group=self.device_group
            ),
            [parts],
            [received],
        )

    def swap(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        """See :meth:`HCCLCommunicator.swap`."""
        going, coming = [rank for rank, _ in sends], [rank for rank, _ in receives]

        def call(*tensors: torch.Tensor) -> None:
            first = len(going)
            swap_parcels(
                self.device_group,
                list(zip(going, tensors[:first], strict=True)),
                list(zip(coming, tensors[first:], strict=True)),
            )

        _record("swap", call, [one for _, one in sends], [one for _, one in receives])

    def gather(self, input_: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        """All ranks' tensors along ``dim`` on rank ``dst``; None elsewhere."""
        gather = super().gather
        if self.rank_in_group != dst:
            _record("gather", lambda one: gather(one, dst, dim), [input_], [])
            return None
        shape = list(input_.shape)
        shape[dim] *= self.world_size
        return self._new("gather", lambda one: gather(one, dst, dim), input_, shape)

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        """Overwrite ``tensor`` with that of rank ``src``."""
        broadcast = super().broadcast
        _record("broadcast", lambda one: broadcast(one, src), [], [tensor])
        return tensor

    def send(self, tensor: torch.Tensor, dst: int | None = None) -> None:
        """Send to rank ``dst``, by default the next one."""
        send = super().send
        _record("send", lambda one: send(one, dst), [tensor], [])

    def recv(self, size: torch.Size, dtype: torch.dtype, src: int | None = None) -> torch.Tensor:
        """Receive from rank ``src``, by default the one before."""
        source = self.ranks[(self.rank_in_group - 1) % self.world_size if src is None else src]
        received = torch.empty(size, dtype=dtype, device=self.device)
        _record(
            "recv",
            lambda one: torch.distributed.recv(one, source, self.device_group),
            [],
            [received],
        )
        return received

    def _new(
        self,
        name: str,
        collective: Callable[[torch.Tensor], torch.Tensor | None],
        input_: torch.Tensor,
        shape: Sequence[int],
    ) -> torch.Tensor:
        result = torch.empty(shape, dtype=input_.dtype, device=input_.device)

        def call(read: torch.Tensor, write: torch.Tensor) -> None:
            made = collective(read)
            if made is not None:
                write.copy_(made)

        _record(name, call, [input_], [result])
        return result


def _record(
    name: str,
    call: Callable[..., object],
    reads: Sequence[torch.Tensor],
    writes: Sequence[torch.Tensor],
) -> None:
    from ascend_ops_core.testing.simulated_npu import record_host_call

    record_host_call(name, call, reads, writes)
