"""The checker finds every missing event of a plan, and a plan runs its tasks in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.overlap import MAIN, OverlapPlan, Task, bind, missing_orders
from hypothesis import given
from hypothesis import strategies as st

PLAN = OverlapPlan(
    inputs=("x",),
    start="begin",
    tasks=(
        Task("left", "side", reads=("x",), writes=("a",), waits=("begin",), records="left done"),
        Task("right", MAIN, reads=("x",), writes=("b",)),
        Task("join", MAIN, reads=("a", "b"), writes=("y",), waits=("left done",)),
    ),
)


def test_a_complete_plan_has_no_problem() -> None:
    assert missing_orders(PLAN) == []
    assert PLAN.streams == ("side",)


def changed(index: int, **fields: object) -> OverlapPlan:
    tasks = list(PLAN.tasks)
    tasks[index] = replace(tasks[index], **fields)  # type: ignore[arg-type]
    return replace(PLAN, tasks=tuple(tasks))


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (changed(2, waits=()), "join on 'main' reads 'a', which left on 'side' writes"),
        (changed(1, writes=("a", "b")), "right on 'main' overwrites 'a', which left"),
        (changed(0, reads=("x", "b")), "left reads 'b', which nothing before it writes"),
        (changed(0, waits=()), "left reads 'x' on stream 'side' without an event"),
        (changed(2, waits=("never",)), "join waits for event 'never', which nothing"),
        (changed(2, reads=("b",), waits=()), "the main stream never waits for left"),
        (changed(1, name="left"), "task 'left' is there twice"),
        (changed(1, records="left done"), "event 'left done' is there twice"),
        (changed(1, writes=("x",)), "right on 'main' overwrites 'x', which left on 'side' reads"),
    ],
    ids=["raw", "waw", "unwritten", "start", "event", "join", "task", "twice", "war"],
)
def test_every_fault_is_named(plan: OverlapPlan, problem: str) -> None:
    assert any(one.startswith(problem) for one in missing_orders(plan)), missing_orders(plan)


def brute_force_unordered(plan: OverlapPlan) -> bool:
    """Whether some order of execution that the streams and events allow swaps a conflict."""
    tasks = plan.tasks
    edges = set()
    for j, later in enumerate(tasks):
        for i in range(j):
            same = tasks[i].stream == later.stream
            if same or (tasks[i].records is not None and tasks[i].records in later.waits):
                edges.add((i, j))
    reach = set(edges)
    for k in range(len(tasks)):
        reach |= {(i, j) for i, a in reach if a == k for b, j in reach if b == k}
    return any(
        (i, j) not in reach
        and (
            set(tasks[i].writes) & set(tasks[j].reads + tasks[j].writes)
            or set(tasks[i].reads) & set(tasks[j].writes)
        )
        for j in range(len(tasks))
        for i in range(j)
    )


@st.composite
def plans(draw: st.DrawFn) -> OverlapPlan:
    tasks = []
    for i in range(draw(st.integers(1, 6))):
        waits = draw(st.sets(st.integers(0, i - 1))) if i else set()
        values = st.sets(st.sampled_from("xyz"), max_size=2)
        tasks.append(
            Task(
                f"t{i}",
                draw(st.sampled_from([MAIN, "a", "b"])),
                tuple(draw(values)),
                tuple(draw(values)),
                tuple(f"e{one}" for one in sorted(waits)),
                f"e{i}",
            )
        )
    return OverlapPlan(("x", "y", "z"), tuple(tasks))


@given(plans())
def test_a_conflict_is_found_exactly_if_an_allowed_order_swaps_it(plan: OverlapPlan) -> None:
    found = any("no event orders them" in one for one in missing_orders(plan))
    assert found == brute_force_unordered(plan)


def test_on_a_cpu_tasks_run_in_order() -> None:
    """Whatever the order in which their work is given."""
    ran: list[str] = []
    names = ("join", "left", "right")
    bound = bind(PLAN, *names)
    for _ in range(2):
        bound.run(torch.device("cpu"), *(lambda name=name: ran.append(name) for name in names))
    assert ran == ["left", "right", "join"] * 2


@pytest.mark.parametrize(
    "names", [(), ("left", "right"), ("left", "right", "joined"), ("left", "left", "join")]
)
def test_work_for_other_tasks_is_refused_when_it_is_bound(names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError, match="the plan has left, right, join"):
        bind(PLAN, *names)
