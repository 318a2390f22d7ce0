"""The one way in which Triton kernels are launched.

Every kernel is a grid-stride loop over ``programs`` units of work::

    for unit in range(tl.program_id(0), programs, tl.num_programs(0)):

so that the grid can be as small as the number of cores, which is what an NPU wants, and never
passes the limit of 65535 programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ascend_ops_core.devices import current_facts
from ascend_ops_core.errors import InvalidInputError

MAX_PROGRAMS = 65535
"""Largest product of a launch grid (triton-ascend refuses more)."""


@dataclass(frozen=True)
class Launch:
    """One launch as asked for.

    Attributes:
        kernel: the ``@triton.jit`` function.
        grid: programs that are started, at least 1.
        arguments: run-time arguments by name: tensors, ints and floats.
        constants: ``tl.constexpr`` arguments by name.
    """

    kernel: Any
    grid: int
    arguments: dict[str, Any]
    constants: dict[str, Any]


def _start(launch: Launch) -> None:
    launch.kernel[(launch.grid,)](**launch.arguments, **launch.constants)


Executor = Callable[[Launch], None]

DefinitionRunner = Callable[[Callable[..., Any], tuple[Any, ...]], Any]
"""Runs an operator's definition, the first argument, on the operator's arguments."""

_executor: ContextVar[Executor | None] = ContextVar("ascend_executor", default=None)
_of_process: Executor = _start
_definitions: DefinitionRunner | None = None


def launch(
    kernel: Any,
    programs: int,
    arguments: dict[str, Any],
    constants: dict[str, Any],
    *,
    cube: bool = False,
) -> None:
    """Start a grid-stride kernel over ``programs`` units of work.

    Args:
        kernel: the ``@triton.jit`` function; it must loop as this module's docstring shows.
        programs: units of work. 0 returns without launching.
        arguments: run-time arguments by name.
        constants: ``tl.constexpr`` arguments by name.
        cube: the kernel uses the matrix unit, so one program per cube core rather than per
            vector core.

    Raises:
        InvalidInputError: ``programs`` is negative.
    """
    if programs < 0:
        raise InvalidInputError(
            f"programs={programs}", "a launch has 0 or more units of work", "Check the shapes."
        )
    if programs == 0:
        return
    facts = current_facts()
    cores = facts.cube_cores if cube else facts.vector_cores
    grid = min(programs, cores, MAX_PROGRAMS)
    execute = _executor.get() or _of_process
    execute(Launch(kernel, grid, arguments, constants))


@contextmanager
def executor(execute: Executor) -> Iterator[None]:
    """Let ``execute`` handle the launches inside this block instead of starting them."""
    token = _executor.set(execute)
    try:
        yield
    finally:
        _executor.reset(token)


def use_executor(execute: Executor | None) -> None:
    """Let ``execute`` handle the launches of this process, in all its threads; None starts them.

    Blocks of :func:`executor` go before it.
    """
    global _of_process
    _of_process = execute or _start


def use_definitions(run: DefinitionRunner | None) -> None:
    """Let operators that would launch Triton kernels run their definition through ``run``.

    For a device that cannot run kernels. Holds for this process; None launches kernels again.
    """
    global _definitions
    _definitions = run


def definition_runner() -> DefinitionRunner | None:
    """Return what :func:`use_definitions` was given; None where kernels are launched."""
    return _definitions


@contextmanager
def recorded_launches() -> Iterator[list[Launch]]:
    """Collect launches without starting them; arguments may be meta tensors."""
    found: list[Launch] = []
    with executor(found.append):
        yield found
