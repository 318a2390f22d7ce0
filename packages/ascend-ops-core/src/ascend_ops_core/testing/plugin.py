"""The pytest plugin of the harness: markers, what ``-m`` needs not import, records of oracles.

Installed with the package (entry point ``pytest11``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
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

_MARKS = re.compile(r"\bmark\.(\w+)")
_MARKS_OF_ALL = re.compile(r"^pytestmark = .*", re.MULTILINE)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which ``-m`` selects no test, since each imports what it tests.

    A folder without any other file is left out as a whole, and with it what its conftest imports.
    """
    if collection_path.is_dir():
        files = list(collection_path.rglob("test_*.py"))
    elif collection_path.match("test_*.py"):
        files = [collection_path]
    else:
        return None
    wanted = str(config.getoption("markexpr") or "")
    return True if files and all(leaves_out(wanted, one.read_text()) for one in files) else None


def leaves_out(wanted: str, source: str) -> bool:
    """Whether no test of a file can fit an expression of marks.

    Args:
        wanted: the expression. One that is more than a mark's name, or names with ``not`` and
            ``and``, is not looked into.
        source: text of the file, which spells its marks ``mark.NAME``.
    """
    if wanted.isidentifier():
        return wanted not in _MARKS.findall(source)
    of_all = _MARKS.findall(" ".join(_MARKS_OF_ALL.findall(source)))
    plain = " or " not in wanted and "(" not in wanted
    unwanted = re.findall(r"not (\w+)", wanted) if plain else []
    return any(
        mark in unwanted or (mark in PROOF_MARKERS and mark not in wanted) for mark in of_all
    )


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
