"""What HCCLCommunicator asks of torch.distributed, on a stand-in for the backend ``hccl``.

The stand-in is rank 1 of 3 and plays the others, which all pass what this rank passes. HCCL itself
was not run.
"""

from __future__ import annotations

# vLLM imports the platform by itself; the platform cannot be the first to import vLLM.
from vllm.platforms.interface import PlatformEnum  # noqa: F401 # isort: skip

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ascend_vllm_plugin.npu.communicator import HCCLCommunicator
from ascend_vllm_plugin.npu.platform import AscendNPUPlatform
from torch.futures import Future

RANKS, RANK = 3, 1


class _Done(dist._Work):
    def __init__(self) -> None:
        super().__init__()
        self.future_: Future[Any] = Future()
        self.future_.set_result(None)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def get_future(self) -> Future[Any]:
        return self.future_


class StandIn(dist.ProcessGroup):
    """Does what HCCL would, and notes it: name, shape, and the rank that is addressed."""

    def __init__(self) -> None:
        super().__init__(RANK, RANKS)
        self.asked: list[tuple[str, tuple[int, ...], int | None]] = []

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "hccl"

    def _note(self, name: str, tensor: torch.Tensor, peer: int | None = None) -> _Done:
        assert tensor.is_contiguous(), f"{name} of a tensor with gaps"
        self.asked.append((name, tuple(tensor.shape), peer))
        return _Done()

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> _Done:
        assert opts.reduceOp == dist.ReduceOp.SUM
        tensors[0].mul_(RANKS)
        return self._note("all_reduce", tensors[0])

    def all_gather_single(self, out: torch.Tensor, given: torch.Tensor, opts: Any = None) -> _Done:
        out.copy_(torch.cat([given] * RANKS))
        return self._note("all_gather", given)

    def reduce_scatter_single(
        self, out: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> _Done:
        assert opts.reduceOp == dist.ReduceOp.SUM
        out.copy_(RANKS * given.chunk(RANKS)[RANK])
        return self._note("reduce_scatter", given)

    def all_to_all_single(
        self,
        out: torch.Tensor,
        given: torch.Tensor,
        out_sizes: list[int],
        sizes: list[int],
        opts: Any = None,
    ) -> _Done:
        assert not out_sizes
        assert not sizes
        assert out.is_contiguous()
        # What every rank sends to this one is its part for it.
        out.copy_(torch.cat([given.chunk(RANKS)[RANK]] * RANKS))
        return self._note("all_to_all", given)

    def gather(
        self, out: list[list[torch.Tensor]], given: list[torch.Tensor], opts: Any = None
    ) -> _Done:
        for one in out[0] if out else ():
            one.copy_(given[0])
        return self._note("gather", given[0], opts.rootRank)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> _Done:
        return self._note("broadcast", tensors[0], opts.rootRank)

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> _Done:
        return self._note("send", tensors[0], dst)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> _Done:
        tensors[0].fill_(7)
        return self._note("recv", tensors[0], src)


@pytest.fixture(scope="module")
def group() -> Iterator[StandIn]:
    made: list[StandIn] = []

    def create(store: Any, rank: int, size: int, timeout: Any) -> StandIn:
        made.append(StandIn())
        return made[-1]

    dist.Backend.register_backend("hccl", create, devices=["cpu"])
    dist.init_process_group(
        AscendNPUPlatform.dist_backend, store=dist.HashStore(), rank=RANK, world_size=RANKS
    )
    assert dist.get_backend() == "hccl"
    yield made[0]
    dist.destroy_process_group()


@pytest.fixture
def communicator(group: StandIn) -> HCCLCommunicator:
    group.asked.clear()
    whole = dist.group.WORLD
    return HCCLCommunicator(whole, torch.device("cpu"), whole, "tp:0")


def rows(tokens: int = 6, width: int = 4) -> torch.Tensor:
    return torch.arange(tokens * width, dtype=torch.float32).view(tokens, width)


@pytest.mark.parametrize("tokens", [6, 1, 0])
def test_all_reduce_sums_in_place(
    communicator: HCCLCommunicator, group: StandIn, tokens: int
) -> None:
    x = rows(tokens)
    out = communicator.all_reduce(x)
    assert torch.equal(out, RANKS * rows(tokens))
    assert group.asked == [("all_reduce", (tokens, 4), None)]


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("tokens", [5, 0])
def test_all_gather(communicator: HCCLCommunicator, group: StandIn, dim: int, tokens: int) -> None:
    x = rows(tokens)
    assert torch.equal(communicator.all_gather(x, dim), torch.cat([x] * RANKS, dim))
    assert group.asked == [("all_gather", (tokens, 4), None)]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_reduce_scatter(communicator: HCCLCommunicator, group: StandIn, dim: int) -> None:
    x = rows(6, 9)
    expected = RANKS * x.chunk(RANKS, dim)[RANK]
    assert torch.equal(communicator.reduce_scatter(x, dim), expected)
    assert [name for name, *_ in group.asked] == ["reduce_scatter"]


@pytest.mark.parametrize("tokens", [2, 0])
def test_all_to_all_writes_where_it_is_told(
    communicator: HCCLCommunicator, group: StandIn, tokens: int
) -> None:
    """A captured graph repeats it over the same memory."""
    parts = torch.arange(3 * tokens * 4, dtype=torch.float32).view(3, tokens, 4)
    received = torch.full((3, tokens, 4), float("nan"))
    communicator.all_to_all_into(received, parts)
    assert torch.equal(received, torch.stack([parts[RANK]] * RANKS))
    assert group.asked == [("all_to_all", (3, tokens, 4), None)]


def test_gather_returns_something_on_one_rank_only(
    communicator: HCCLCommunicator, group: StandIn
) -> None:
    x = rows()
    assert torch.equal(communicator.gather(x, RANK, 1), torch.cat([x] * RANKS, 1))
    assert communicator.gather(x, 2) is None
    assert group.asked == [("gather", (6, 4), RANK), ("gather", (6, 4), 2)]


def test_broadcast_and_neighbours(communicator: HCCLCommunicator, group: StandIn) -> None:
    x = rows()
    assert communicator.broadcast(x, 2) is x
    communicator.send(x)
    communicator.send(x, 0)
    received = communicator.recv(torch.Size([2, 3]), torch.int32)
    assert received.tolist() == [[7] * 3] * 2
    communicator.recv(torch.Size([1]), torch.float32, 2)
    assert group.asked == [
        ("broadcast", (6, 4), 2),
        ("send", (6, 4), 2),
        ("send", (6, 4), 0),
        ("recv", (2, 3), 0),
        ("recv", (1,), 2),
    ]


def test_swap_sends_and_fills_bytes(communicator: HCCLCommunicator, group: StandIn) -> None:
    """Not every transport knows 8-bit floats."""
    received = torch.empty(2, 3)
    communicator.swap([(2, rows())], [(0, received)])
    assert group.asked == [("send", (96,), 2), ("recv", (24,), 0)]
    assert received.view(torch.uint8).eq(7).all()
    communicator.swap([], [])
    assert len(group.asked) == 2
