"""The pytest plugin of the harness: markers, and the record of oracle proofs.

Installed with the package (entry point ``pytest11``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ascend_ops_core.testing.recorder import Record, record

_MARKERS = (
    "oracle(op, source): compares the definition of an operator with an independent source",
    "interpreter: Triton kernels through Triton's interpreter, needs TRITON_INTERPRET=1",
    "compile: needs the compiler environment (extra compile)",
    "contract: torch_npu calls against the schemas of its wheel",
    "sim: on the simulated NPU, in a process of its own",
)

PROOF_MARKERS = ("interpreter", "compile", "contract", "sim")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the proofs that need a process of their own unless ``-m`` asks for them."""
    wanted = str(config.getoption("markexpr") or "")
    left_out = [mark for mark in PROOF_MARKERS if mark not in wanted]
    kept = [item for item in items if not any(item.get_closest_marker(m) for m in left_out)]
    if len(kept) < len(items):
        config.hook.pytest_deselected(
            items=[item for item in items if any(item.get_closest_marker(m) for m in left_out)]
        )
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    """Record the oracles of a test that passed."""
    report: Any = yield
    if report.when == "call" and report.passed:
        for mark in item.iter_markers("oracle"):
            test = item.nodeid.split("[", 1)[0].rsplit("::", 1)[-1]
            record(Record(mark.args[0], "oracle", test, detail=mark.args[1]))
    return report
