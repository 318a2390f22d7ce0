"""Schedules over several streams, written down so that they can be read, checked and run.

A plan says which task runs on which stream, what it reads and writes, and which events order it.
:func:`missing_orders` finds two tasks on different streams that touch the same value, one of them
writing it, without an event between them: the fault that hardware shows as a wrong number now and
then. The simulated NPU does everything in the order of the calls, so it can never show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ascend_ops_core.errors import InvalidInputError

MAIN = "main"
"""The stream on which a plan starts and ends: the current one when it is run."""


@dataclass(frozen=True)
class Task:
    """One piece of work.

    Attributes:
        name: by which the work is looked up when the plan is run.
        stream: where it runs.
        reads: values that it reads.
        writes: values that it writes.
        waits: events that its stream waits for first.
        records: event recorded behind it, or None.
    """

    name: str
    stream: str = MAIN
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    records: str | None = None


@dataclass(frozen=True)
class OverlapPlan:
    """Tasks in the order in which the host issues them.

    Attributes:
        inputs: values that are ready on the main stream when the plan starts.
        tasks: the tasks.
        start: event recorded on the main stream before the first task, or None.
    """

    inputs: tuple[str, ...]
    tasks: tuple[Task, ...]
    start: str | None = None

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams besides the main one, in order of first use."""
        return tuple(dict.fromkeys(one.stream for one in self.tasks if one.stream != MAIN))


def missing_orders(plan: OverlapPlan) -> list[str]:
    """Return what is wrong with a plan, one sentence each; empty if every order is given.

    Found are: a task that reads or overwrites what a task of another stream writes or reads, not
    ordered by events; a wait for an event that nothing before it records; a value that is read and
    that nothing before it writes; a stream whose last task the main stream never waits for; two
    tasks or events of one name.
    """
    tasks = plan.tasks
    before = _before(plan)
    problems = _names(plan)
    recorded = {plan.start} - {None}
    written = set(plan.inputs)
    for index, task in enumerate(tasks):
        problems += [
            f"{task.name} waits for event {event!r}, which nothing before it records"
            for event in task.waits
            if event not in recorded
        ]
        problems += [
            f"{task.name} reads {value!r}, which nothing before it writes"
            for value in task.reads
            if value not in written
        ]
        for earlier in range(index):
            if earlier not in before[index]:
                problems += _conflicts(tasks[earlier], task)
        if task.stream != MAIN and not _started(plan, index, before):
            problems += [
                f"{task.name} reads {value!r} on stream {task.stream!r} without an event behind "
                "the start"
                for value in task.reads
                if value in plan.inputs
            ]
        written |= set(task.writes)
        if task.records is not None:
            recorded.add(task.records)
    for stream in plan.streams:
        last = max(i for i, one in enumerate(tasks) if one.stream == stream)
        if not any(one.stream == MAIN and last in before[i] for i, one in enumerate(tasks)):
            problems.append(f"the main stream never waits for {tasks[last].name} on {stream!r}")
    return problems


class BoundPlan:
    """A plan whose work is given in an order of its own, as :func:`bind` checked it.

    Attributes:
        plan: the plan.
    """

    def __init__(self, plan: OverlapPlan, places: Sequence[int]) -> None:
        self.plan = plan
        self._steps = tuple(zip(plan.tasks, places, strict=True))

    def run(self, device: torch.device, *work: Callable[[], Any]) -> None:
        """Run the tasks: on streams of the device, or one after the other on a CPU.

        Args:
            device: where.
            work: what the tasks do, in the order of the names that were bound.
        """
        if device.type == "cpu":
            for _, place in self._steps:
                work[place]()
            return
        module: Any = getattr(torch, device.type)
        plan = self.plan
        main = module.current_stream(device)
        streams = {MAIN: main} | {name: _stream(module, device, name) for name in plan.streams}
        events: dict[str, Any] = {}
        if plan.start is not None:
            events[plan.start] = main.record_event(module.Event())
        for task, place in self._steps:
            stream = streams[task.stream]
            for event in task.waits:
                stream.wait_event(events[event])
            with module.stream(stream):
                work[place]()
                if task.records is not None:
                    events[task.records] = stream.record_event(module.Event())


def bind(plan: OverlapPlan, *names: str) -> BoundPlan:
    """Check once what every step would have to: that there is work for each task, and no other.

    Args:
        plan: the plan.
        names: of its tasks, in the order in which :meth:`BoundPlan.run` will be given their work.

    Raises:
        InvalidInputError: the names and the plan's tasks differ.
    """
    tasks = [one.name for one in plan.tasks]
    if sorted(names) != sorted(tasks):
        raise InvalidInputError(
            f"work for {', '.join(names)}", f"the plan has {', '.join(tasks)}", "Give one for each."
        )
    return BoundPlan(plan, [names.index(name) for name in tasks])


_streams: dict[tuple[torch.device, str], Any] = {}


def _stream(module: Any, device: torch.device, name: str) -> Any:
    """The stream of that name, made once: a device has few."""
    key = (device, name)
    if key not in _streams:
        _streams[key] = module.Stream(device=device)
    return _streams[key]


def _before(plan: OverlapPlan) -> list[set[int]]:
    """For every task those that are done when it starts, whatever the streams' speeds."""
    before: list[set[int]] = []
    recorded_by: dict[str, int] = {}
    last_of: dict[str, int] = {}
    for index, task in enumerate(plan.tasks):
        direct = {recorded_by[event] for event in task.waits if event in recorded_by}
        if task.stream in last_of:
            direct.add(last_of[task.stream])
        before.append(direct.union(*(before[one] for one in direct)))
        last_of[task.stream] = index
        if task.records is not None:
            recorded_by[task.records] = index
    return before


def _started(plan: OverlapPlan, index: int, before: Sequence[set[int]]) -> bool:
    """Whether a task runs behind the start of the main stream."""
    chain = [plan.tasks[one] for one in (*before[index], index)]
    return any(one.stream == MAIN or plan.start in one.waits for one in chain)


def _conflicts(earlier: Task, later: Task) -> list[str]:
    pairs = (
        ("reads", later.reads, earlier.writes, "writes"),
        ("overwrites", later.writes, earlier.reads, "reads"),
        ("overwrites", later.writes, earlier.writes, "writes"),
    )
    return [
        f"{later.name} on {later.stream!r} {does} {value!r}, which {earlier.name} on "
        f"{earlier.stream!r} {did}, and no event orders them"
        for does, ours, theirs, did in pairs
        for value in ours
        if value in theirs
    ]


def _names(plan: OverlapPlan) -> list[str]:
    names = [one.name for one in plan.tasks]
    events = [one.records for one in plan.tasks if one.records is not None]
    return [
        f"{kind} {name!r} is there twice"
        for kind, given in (("task", names), ("event", [*events, plan.start]))
        for name in dict.fromkeys(given)
        if name is not None and given.count(name) > 1
    ]
