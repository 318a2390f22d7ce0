"""Host cost of calling an operator: directly, through torch.ops, and as torch's custom_op.

The work is next to nothing (an RMS norm of one row of eight, the same definition for all), so
that what is left is the cost of the call.
"""

from __future__ import annotations

import datetime
import json
import platform
import timeit
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch
from ascend_ops_core.ops.norm import reference
from ascend_ops_core.registry import declare

from benchmarks.machine import cpu_name

RAW = Path(__file__).parent / "results" / "op-overhead.json"
PAGE = Path(__file__).parents[1] / "docs" / "op-overhead.md"

_CALLS = 2000
_ROUNDS = 15


@dataclass(frozen=True)
class Cost:
    """One way to call.

    Attributes:
        way: how it was called.
        microseconds: median of the rounds, for one call.
        ratio: to the plain function of the same round's median.
    """

    way: str
    microseconds: float
    ratio: float


def _definition(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return reference.rms_norm(x, weight, eps)


def ways() -> dict[str, Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]]:
    """Every way to call the same definition, by name; the plain function first."""
    operator = declare(
        "ascend_ops_core.ops.norm",
        "overhead_probe(Tensor x, Tensor weight, float eps) -> Tensor",
        npu=("torch",),
        fake=lambda x, weight, eps: torch.empty_like(x),
        cpu=_definition,
    )
    custom = torch.library.custom_op("ascend_benchmark::probe", _definition, mutates_args=())
    return {
        "plain function": _definition,
        "our operator, called directly": operator,
        "our operator, through torch.ops": operator.packet,
        "torch.library.custom_op": custom,
    }


def measure() -> list[Cost]:
    """Time every way in turn, round by round, so that a busy machine hits all alike."""
    x, weight = torch.randn(1, 8), torch.ones(8)
    found = ways()
    seconds: dict[str, list[float]] = {name: [] for name in found}
    with torch.inference_mode():
        for call in found.values():
            timeit.timeit(lambda call=call: call(x, weight, 1e-6), number=_CALLS)  # type: ignore[misc]
        for _ in range(_ROUNDS):
            for name, call in found.items():
                spent = timeit.timeit(lambda call=call: call(x, weight, 1e-6), number=_CALLS)  # type: ignore[misc]
                seconds[name].append(spent / _CALLS)
    plain = median(seconds["plain function"])
    return [
        Cost(name, round(median(times) * 1e6, 2), round(median(times) / plain, 2))
        for name, times in seconds.items()
    ]


def write(costs: list[Cost]) -> None:
    """Write the raw numbers and the page."""
    today = datetime.date.today().isoformat()
    facts = {
        "CPU": cpu_name(),
        "Python": platform.python_version(),
        "torch": version("torch"),
        "date": today,
    }
    RAW.write_text(
        json.dumps({"facts": facts, "costs": [asdict(c) for c in costs]}, indent=2) + "\n"
    )
    plain = costs[0].microseconds
    rows = [
        f"| {cost.way} | {cost.microseconds:.2f} | {cost.microseconds - plain:+.2f} "
        f"| {cost.ratio:.2f}x |"
        for cost in costs
    ]
    lines = [
        "# Host cost of a call",
        "",
        f"Measured {today} with `./tools/dev bench -- overhead` on {cpu_name()}, Python "
        f"{facts['Python']}, torch {facts['torch']}: the same definition (an RMS norm of one row "
        f"of eight) called in four ways, in turn, median of {_ROUNDS} rounds of {_CALLS} calls, on "
        "a CPU. What differs is the call alone. Ratios are to the plain function.",
        "",
        "| way | microseconds | above the plain function | ratio |",
        "|---|---|---|---|",
        *rows,
        "",
        "Models call operators directly in eager mode; a compiled graph calls them through "
        "`torch.ops`.",
        "",
    ]
    PAGE.write_text("\n".join(lines))
