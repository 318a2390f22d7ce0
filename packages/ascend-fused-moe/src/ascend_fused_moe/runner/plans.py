"""In which order, and on which stream, a layer's parts run."""

from __future__ import annotations

from dataclasses import dataclass

from ascend_ops_core.overlap import MAIN, OverlapPlan, Task

__all__ = ["AFTER_ONE_ANOTHER", "ALONE", "OVERLAPPED", "FusedMoEEvents"]


@dataclass(frozen=True)
class FusedMoEEvents:
    """Names of the events by which the shared experts' stream and the main one wait.

    Attributes:
        shared_input: the shared experts' rows are ready.
        shared_output: their output is ready.
    """

    shared_input: str = "shared input ready"
    shared_output: str = "shared output ready"


_EVENTS = FusedMoEEvents()
_SHARED = "shared experts"

_PREPARE = Task("prepare", reads=("x",), writes=("rows",))
_EXPERTS = Task("experts", reads=("rows",), writes=("routed",))
_FINALIZE = Task("finalize", reads=("routed", "rows"), writes=("own routed",))

ALONE = OverlapPlan(inputs=("x",), tasks=(_PREPARE, _EXPERTS, _FINALIZE))
"""Without shared experts."""

AFTER_ONE_ANOTHER = OverlapPlan(
    inputs=("x",),
    tasks=(
        Task("shared input", reads=("x",), writes=("shared rows",)),
        Task("shared part 1", reads=("shared rows",), writes=("activated",)),
        Task("shared part 2", reads=("activated",), writes=("shared",)),
        Task("shared output", reads=("shared",), writes=("own shared",)),
        _PREPARE,
        _EXPERTS,
        _FINALIZE,
    ),
)
"""The shared experts first."""

OVERLAPPED = OverlapPlan(
    inputs=("x",),
    tasks=(
        Task("shared input", reads=("x",), writes=("shared rows",), records=_EVENTS.shared_input),
        Task(
            "shared part 1",
            _SHARED,
            reads=("shared rows",),
            writes=("activated",),
            waits=(_EVENTS.shared_input,),
        ),
        _PREPARE,
        Task(
            "shared part 2",
            _SHARED,
            reads=("activated",),
            writes=("shared",),
            records=_EVENTS.shared_output,
        ),
        _EXPERTS,
        _FINALIZE,
        Task(
            "shared output",
            MAIN,
            reads=("shared",),
            writes=("own shared",),
            waits=(_EVENTS.shared_output,),
        ),
    ),
)
"""The shared experts' products on a stream of their own, beside dispatch and combine; what they
exchange stays on the main stream, where every rank has the same order of collectives."""
