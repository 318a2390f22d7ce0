"""Streams and events. Work is done at once, so they only keep order and count waits."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.simulated_npu.counters import host_waits
from ascend_ops_core.testing.simulated_npu.state import (
    current_device,
    index_of,
    set_current_device,
)

_TorchStream, _TorchEvent = torch.Stream, torch.Event
_numbers = itertools.count(1)


class _Standing(type):
    """A class whose instances count as those of the torch class that it stands for."""

    stands_for: type

    def __instancecheck__(cls, instance: Any) -> bool:
        return type.__instancecheck__(cls, instance) or isinstance(instance, cls.stands_for)


class Stream(metaclass=_Standing):
    """A stream of a device.

    Attributes:
        device: the device.
        device_index: its index.
        device_type: 20, torch's number of PrivateUse1.
        stream_id: 0 for the default stream of a device.
        npu_stream: the same, as torch_npu names it.
        priority: as given; it changes nothing.
    """

    stands_for = _TorchStream

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device_index = index_of(device)
        self.device = torch.device("npu", self.device_index)
        self.device_type = 20
        self.priority = priority
        self.stream_id = next(_numbers)
        self._outer: list[tuple[Stream, int]] = []

    @property
    def npu_stream(self) -> int:
        """The stream's number."""
        return self.stream_id

    def synchronize(self) -> None:
        """Let the host wait."""
        host_waits("Stream.synchronize")

    def query(self) -> bool:
        """Whether all work is done: always."""
        return True

    def wait_event(self, event: Event) -> None:
        """Order later work of this stream behind the event."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Order later work of this stream behind the other's."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, by default a new one."""
        event = event if event is not None else Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._outer.append((current_stream(), current_device()))
        set_stream(self)
        return self

    def __exit__(self, *_: Any) -> None:
        stream, device = self._outer.pop()
        set_stream(stream)
        set_current_device(device)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Stream)
            and self.stream_id == getattr(other, "stream_id", None)
            and (self.device_index == getattr(other, "device_index", None))
        )

    def __hash__(self) -> int:
        return hash((self.device_index, self.stream_id))

    def __repr__(self) -> str:
        return f"<simulated stream {self.stream_id} of {self.device}>"


class Event(metaclass=_Standing):
    """A point in a stream's work.

    Attributes:
        enable_timing: whether :meth:`elapsed_time` may be asked.
        stream: stream in which it was recorded last, or None.
    """

    stands_for = _TorchEvent

    def __init__(
        self,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        if interprocess:
            raise NotImplementedError(
                "events between processes are not modelled by the simulated NPU"
            )
        self.enable_timing = enable_timing
        self.device = torch.device("npu", index_of(device))
        self.stream: Stream | None = None
        self._time = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Record the event behind the stream's work so far, by default the current stream's."""
        self.stream = stream if stream is not None else current_stream()
        self._time = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Order the stream's later work behind the event; without a record it does nothing."""

    def query(self) -> bool:
        """Whether the work before it is done: always."""
        return True

    def synchronize(self) -> None:
        """Let the host wait for it."""
        host_waits("Event.synchronize")

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds of the host between two recorded events.

        Raises:
            InvalidInputError: an event was made without ``enable_timing`` or is not recorded.
        """
        for event in (self, end):
            if not event.enable_timing or event.stream is None:
                raise InvalidInputError(
                    "event",
                    "elapsed_time needs events with enable_timing=True that were recorded",
                    "Create them so, and record both.",
                )
        return (end._time - self._time) * 1e3


class _Current(threading.local):
    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}


_current = _Current()
_defaults: dict[int, Stream] = {}


def default_stream(device: Any = None) -> Stream:
    """Return the default stream of a device."""
    index = index_of(device)
    if index not in _defaults:
        stream = Stream(index)
        stream.stream_id = 0
        _defaults[index] = stream
    return _defaults[index]


def current_stream(device: Any = None) -> Stream:
    """Return the current stream of a device in this thread."""
    index = index_of(device)
    return _current.streams.get(index) or default_stream(index)


def set_stream(stream: Stream) -> None:
    """Make a stream, and its device, current in this thread."""
    _current.streams[stream.device_index] = stream
    set_current_device(stream.device_index)


@contextmanager
def stream_context(stream: Stream | None) -> Iterator[None]:
    """Make a stream current inside this block; None does nothing."""
    if stream is None:
        yield
        return
    with stream:
        yield


def install_streams() -> None:
    """Let ``torch.Stream`` and ``torch.Event`` give those of the simulated device."""
    torch.Stream = Stream  # type: ignore[misc, assignment]
    torch.Event = Event  # type: ignore[misc, assignment]
