"""`./tools/dev test`: every session, then one table and one closing line.

Two sessions run side by side, since each keeps to about one core, and what reads the records of
others runs after them. A failing session does not stop the others. The exit status is 0 only if
every session passed and every session with tests ran at least one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ci.changed import (
    UnknownPathError,
    all_sessions,
    changed_paths,
    sessions_for,
)
from tools.workspace import ROOT

REPORTS = ROOT / ".cache" / "reports"

WORKERS = 2
WHEELS = "wheels"
# Engines also come first because everything after them finds what they have compiled.
LONGEST_FIRST = ("engine", "engine-npu", WHEELS, "serve", "interpreter", "sim", "compile", "lint")


@dataclass(frozen=True)
class Counts:
    """Tests of one pytest run."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped
        )

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclass(frozen=True)
class Outcome:
    """What one session did; `counts` is None where it runs no tests."""

    session: str
    succeeded: bool
    seconds: float
    counts: Counts | None


def read_report(report: str) -> Counts:
    """Return the counts in a JUnit report; errors outside a test count as failures."""
    suites = ElementTree.fromstring(report).iter("testsuite")
    total = Counts()
    for suite in suites:
        tests, failures, errors, skipped = (
            int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")
        )
        total += Counts(tests - failures - errors - skipped, failures + errors, skipped)
    return total


def summary(outcomes: list[Outcome]) -> str:
    """Return a line per session and a closing line with the totals over all of them."""
    lines = []
    total = Counts()
    for outcome in outcomes:
        state = "ok" if outcome.succeeded else "FAILED"
        counts = f"  {outcome.counts}" if outcome.counts else ""
        lines.append(f"{outcome.session:<32}{state:<8}{outcome.seconds:6.0f} s{counts}")
        total += outcome.counts or Counts()
    return "\n".join([*lines, "", str(total)])


def chains(sessions: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Return chains of sessions that may run side by side, and those that run after all of them.

    Sessions that build wheels share a folder, so they make one chain, in order. The longest chains
    come first, so that two workers end at about the same time.
    """
    after = [one for one in sessions if one == "operators"]
    wheels = [one for one in sessions if one.startswith("tests-") and one != "tests-repo"]
    side_by_side = {one: [one] for one in sessions if one not in (*after, *wheels)}
    if wheels:
        side_by_side[WHEELS] = wheels
    known = [side_by_side.pop(one) for one in LONGEST_FIRST if one in side_by_side]
    return [*known, *side_by_side.values()], after


def run_all(sessions: Sequence[str]) -> list[Outcome]:
    """Run the sessions and return their outcomes in the order of `sessions`."""
    side_by_side, after = chains(sessions)
    with ThreadPoolExecutor(WORKERS) as pool:
        done = pool.map(lambda chain: [run_session(one) for one in chain], side_by_side)
        outcomes = [outcome for chain in done for outcome in chain]
    outcomes += [run_session(one) for one in after]
    return sorted(outcomes, key=lambda outcome: sessions.index(outcome.session))


def run_session(session: str) -> Outcome:
    """Run one session of nox and print what it said when it has ended."""
    report = REPORTS / f"{session}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "-s", session]
    started = time.monotonic()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(done.stdout, flush=True)
    seconds = time.monotonic() - started
    counts = read_report(report.read_text()) if report.exists() else None
    return Outcome(session, done.returncode == 0, seconds, counts)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./tools/dev test", description="Run everything that must pass."
    )
    parser.add_argument(
        "--changed-from",
        metavar="REVISION",
        help="only what the difference to this git revision touches (see ci/changed.py)",
    )
    options = parser.parse_args(arguments)
    sessions = all_sessions()
    if options.changed_from:
        try:
            sessions = sessions_for(changed_paths(options.changed_from))
        except UnknownPathError as error:
            print(error, file=sys.stderr)
            return 1
    outcomes = run_all(sessions)
    print(summary(outcomes), flush=True)
    return 0 if all(outcome.succeeded for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
