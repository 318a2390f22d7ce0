"""Graphs of the simulated device: ``torch.npu.NPUGraph`` and ``torch.npu.graph``.

As on hardware, a captured region does not take effect while it is captured: every write to memory
from outside is undone, and its floating-point results hold NaN until the first replay. A replay
runs the recorded calls again over the same memory, so a program that passes new tensors instead of
filling the old ones gets old results here too.

Three mistakes that hardware punishes with wrong numbers or a crash are errors here:

* the host waits for the device inside a captured region;
* memory that the region reads or writes is gone at a replay;
* a tensor made inside the region outlives it without being a result (see
  :meth:`NPUGraph.made_inside`): it lies in the graph's pool, which other graphs write to.
"""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ascend_ops_core.testing.simulated_npu import streams
from ascend_ops_core.testing.simulated_npu.counters import COUNTERS, waits
from ascend_ops_core.testing.simulated_npu.memory import MEMORY, Allocation
from ascend_ops_core.testing.simulated_npu.state import current_device

_FACTORY = "aten::empty"

_pools = itertools.count(1)
_members: dict[Any, dict[int, int]] = {}


class GraphError(RuntimeError):
    """A captured region or a replay does what hardware cannot do."""


@dataclass(frozen=True)
class Made:
    """A piece of memory made inside a captured region.

    Attributes:
        by: the call that made it.
        shape: of the tensor.
        dtype: of the tensor.
        address: of its first byte.
    """

    by: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    address: int


@dataclass
class _Region:
    """What is recorded of a captured region."""

    calls: list[Callable[[], object]] = field(default_factory=list)
    outside: dict[int, tuple[Allocation, str]] = field(default_factory=dict)
    inside: dict[int, tuple[Made, Allocation]] = field(default_factory=dict)
    kept: dict[Any, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    owned: list[torch.Tensor] = field(default_factory=list)


class _Current(threading.local):
    graph: NPUGraph | None = None


_current = _Current()


def capturing() -> NPUGraph | None:
    """Return the graph that this thread captures into, or None."""
    return _current.graph


class NPUGraph:
    """Calls on a device, recorded once and replayed over the same memory."""

    def __init__(self, keep_graph: bool = False) -> None:
        del keep_graph
        self._region: _Region | None = None
        self._pool: Any = None
        self._device = 0
        self._pool_bytes = 0
        self._before = (0, 0)

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Record from here on.

        Raises:
            GraphError: this thread captures already, or the graph holds a region.
        """
        del capture_error_mode
        if _current.graph is not None:
            raise GraphError("capture_begin: this thread is capturing another graph")
        if self._region is not None:
            raise GraphError("capture_begin: this graph is captured already; call reset() first")
        self._pool = graph_pool_handle() if pool is None else pool
        self._device = current_device()
        here = MEMORY.of(self._device)
        self._before = (here.allocated, here.peak)
        here.peak = here.allocated
        self._region = _Region()
        _current.graph = self

    def capture_end(self) -> None:
        """Stop recording; undo what the region wrote to memory from outside."""
        region = self._held()
        _current.graph = None
        with torch.inference_mode():
            for target, old in reversed(region.kept.values()):
                target.copy_(old)
            for result in region.owned:
                if result.is_floating_point():
                    result.fill_(float("nan"))
        region.kept.clear()
        here = MEMORY.of(self._device)
        allocated, peak = self._before
        alive = sum(one.size for _, one in region.inside.values() if not one.ended())
        # What the region needs at once stays with the graph; results are counted as tensors are.
        self._pool_bytes = max(0, here.peak - allocated - alive)
        here.peak = max(here.peak, peak)
        self._resize_pool(self._pool_bytes)

    def replay(self) -> None:
        """Run the recorded calls again.

        Raises:
            GraphError: nothing was captured, this thread is capturing, or memory that the calls
                use is gone.
        """
        region = self._held()
        if _current.graph is not None:
            raise GraphError("replay: this thread is capturing; a graph cannot be part of a graph")
        for allocation, use in region.outside.values():
            if allocation.ended():
                raise GraphError(
                    f"replay: {use} uses memory from outside the graph at "
                    f"{allocation.start:#x} ({allocation.size} bytes) that is gone: the tensor was "
                    "freed or replaced since the capture. Keep it, and copy new values into it."
                )
        COUNTERS.replays += 1
        with torch.inference_mode():
            for call in region.calls:
                call()

    def reset(self) -> None:
        """Forget the region and give its memory back."""
        if _current.graph is self:
            raise GraphError("reset: the graph is being captured")
        if self._region is not None:
            self._resize_pool(None)
        self._region, self._pool_bytes = None, 0

    def __del__(self) -> None:
        if self._region is not None and _current.graph is not self:
            self.reset()

    def pool(self) -> Any:
        """Return the handle of the pool that the graph's memory belongs to."""
        return self._pool

    @property
    def pool_bytes(self) -> int:
        """Bytes that the graph needs of its pool, besides its results."""
        return self._pool_bytes

    def _resize_pool(self, mine: int | None) -> None:
        """Let the pool be as large as the graph in it that needs most: they never run at once."""
        members = _members.setdefault(self._pool, {})
        before = max(members.values(), default=0)
        if mine is None:
            members.pop(id(self), None)
        else:
            members[id(self)] = mine
        after = max(members.values(), default=0)
        if not members:
            del _members[self._pool]
        if after > before:
            MEMORY.of(self._device).add(after - before)
        elif after < before:
            MEMORY.of(self._device).remove(before - after)

    def made_inside(self) -> list[Made]:
        """Return the memory made in the region that tensors of the program still use."""
        inside = self._held().inside.values()
        return [made for made, allocation in inside if not allocation.ended()]

    def add(
        self,
        name: str,
        call: Callable[[], object],
        tensors: Iterable[torch.Tensor],
        results: Iterable[torch.Tensor] = (),
    ) -> None:
        """Record a call over the CPU aliases ``tensors``; it is not run here.

        ``results`` are CPU aliases of memory that it makes; ``call`` fills them anew.
        """
        region = self._held()
        for result in results:
            self._note_made(region, name, result)
        for tensor in tensors:
            self._note(region, name, tensor)
        region.calls.append(call)

    def keep_contents(self, target: torch.Tensor) -> None:
        """Note that the region writes to the memory of a CPU alias, to be undone if from outside.

        To be called before the write.
        """
        region = self._held()
        allocation = MEMORY.at(target.data_ptr()) if target.numel() else None
        if allocation is None or allocation.start not in region.inside:
            place = (target.data_ptr(), target.dtype, target.shape, target.stride())
            # What stood there before the first of several writes is what comes back.
            if place not in region.kept:
                region.kept[place] = (target, target.clone())

    def _note_made(self, region: _Region, name: str, alias: torch.Tensor) -> None:
        allocation = MEMORY.at(alias.data_ptr()) if alias.numel() else None
        if allocation is None:
            return
        made = Made(name, tuple(alias.shape), alias.dtype, alias.data_ptr())
        region.inside[allocation.start] = (made, allocation)
        region.owned.append(alias)

    def _note(self, region: _Region, name: str, tensor: torch.Tensor) -> None:
        allocation = MEMORY.at(tensor.data_ptr()) if tensor.numel() else None
        if allocation is None:
            return
        if allocation.start not in region.inside:
            region.outside.setdefault(allocation.start, (allocation, name))
            return
        made, _ = region.inside[allocation.start]
        if made.by.startswith(_FACTORY):
            # torch makes most results empty and then fills them: the second call tells more.
            region.inside[allocation.start] = (replace(made, by=name), allocation)

    def _held(self) -> _Region:
        if self._region is None:
            raise GraphError("the graph is empty: capture a region first")
        return self._region


class graph:  # noqa: N801 - the name that torch.npu gives it
    """Captures what is done inside this block into a graph.

    Args:
        npu_graph: an empty graph.
        pool: handle of the pool that the memory comes from, by default one of its own.
        stream: stream that captures, by default a new one.
    """

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        **_: Any,
    ) -> None:
        self._graph = npu_graph
        self._pool = pool
        self._stream = streams.stream_context(stream if stream is not None else streams.Stream())
        self._mode = capture_error_mode

    def __enter__(self) -> None:
        gc.collect()
        self._stream.__enter__()
        self._graph.capture_begin(self._pool, self._mode)

    def __exit__(self, *error: Any) -> None:
        self._graph.capture_end()
        if error[0] is not None:
            self._graph.reset()
        self._stream.__exit__(*error)


def graph_pool_handle() -> tuple[int, int]:
    """Return the handle of a new pool."""
    return (0, next(_pools))


def is_current_stream_capturing() -> bool:
    """Whether this thread is capturing."""
    return _current.graph is not None


def _refuse_to_wait(what: str) -> None:
    if _current.graph is not None:
        raise GraphError(
            f"{what} lets the host wait for the device inside a captured region. Compute it before "
            "the region, or keep it on the device."
        )


waits.refusal = _refuse_to_wait
