"""Programs that are copies of a process: what they find, return and leave behind."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ascend_ops_core.testing.forked_programs import ForkedPrograms

# Nothing else here imports it.
IMPORTED = "colorsys"


@pytest.fixture(scope="module")
def programs() -> Iterator[ForkedPrograms]:
    with ForkedPrograms([IMPORTED], COLOUR="red", TASTE="sweet") as made:
        yield made


def program(folder: Path, text: str) -> Path:
    file = folder / "program.py"
    file.write_text(text)
    return file


def test_a_copy_has_the_imports_its_own_arguments_and_variables(
    programs: ForkedPrograms, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    file = program(
        tmp_path,
        "import json, os, sys, beside\n"
        f"print(json.dumps([{IMPORTED!r} in sys.modules, sys.argv[1:], beside.VALUE,\n"
        "    os.environ['COLOUR'], os.environ['TASTE'], __name__]))\n",
    )
    log = tmp_path / "log"
    programs.run(file, ["a", "b c"], log, 30, TASTE="sour")
    found = json.loads(log.read_text())
    assert found == [True, ["a", "b c"], 7, "red", "sour", "__main__"]


def test_processes_of_a_copy_are_copies(programs: ForkedPrograms, tmp_path: Path) -> None:
    file = program(
        tmp_path,
        "import multiprocessing, sys\n"
        "context = multiprocessing.get_context('spawn')\n"
        "queue = context.SimpleQueue()\n"
        "sys.marked = True\n"
        "child = context.Process(target=lambda: queue.put(hasattr(sys, 'marked')))\n"
        "child.start(); print(queue.get()); child.join()\n",
    )
    programs.run(file, [], tmp_path / "log", 30)
    assert (tmp_path / "log").read_text() == "True\n"


@pytest.mark.parametrize(
    ("text", "status"), [("raise ValueError('told')", 1), ("import sys; sys.exit(3)", 3)]
)
def test_a_failure_is_told_and_the_next_one_runs(
    programs: ForkedPrograms, tmp_path: Path, text: str, status: int
) -> None:
    log = tmp_path / "log"
    with pytest.raises(AssertionError, match=f"exit status {status}") as caught:
        programs.run(program(tmp_path, text), [], log, 30)
    assert ("told" in str(caught.value)) == (status == 1)
    programs.run(program(tmp_path, "print('well')"), [], log, 30)
    assert log.read_text() == "well\n"


def test_two_run_at_a_time(programs: ForkedPrograms, tmp_path: Path) -> None:
    file = program(
        tmp_path,
        "import pathlib, sys, time\n"
        "mine, other = map(pathlib.Path, sys.argv[1:])\n"
        "mine.touch()\n"
        "while not other.exists(): time.sleep(0.01)\n",
    )
    names = [str(tmp_path / name) for name in "ab"]
    started = [
        programs.start(file, order, tmp_path / f"log{i}")
        for i, order in enumerate((names, names[::-1]))
    ]
    assert [programs.wait(one, 30) for one in reversed(started)] == [0, 0]


def test_one_that_takes_too_long_ends_with_all_that_it_started(
    programs: ForkedPrograms, tmp_path: Path
) -> None:
    file = program(
        tmp_path,
        "import os, pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid))\n"
        "time.sleep(600)\n",
    )
    number = tmp_path / "number"
    process = programs.start(file, [str(number)], tmp_path / "log")
    while not (number.exists() and number.read_text()):
        time.sleep(0.01)
    with pytest.raises(AssertionError, match=r"did not end within 0\.1 s"):
        programs.wait(process, 0.1)
    for one in (process, int(number.read_text())):
        assert ended(one)


def ended(process: int) -> bool:
    """Whether a process is gone, or nobody has asked for its status yet."""
    for _ in range(500):
        try:
            os.kill(process, 0)
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_an_import_that_fails_is_an_error() -> None:
    with pytest.raises(AssertionError, match="has ended"):
        ForkedPrograms(["no_such_module_anywhere"])
