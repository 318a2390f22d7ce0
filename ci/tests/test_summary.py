"""The closing table and line of ./tools/dev test."""

import pytest

from ci import test as runner

REPORT = """<?xml version="1.0"?>
<testsuites><testsuite name="pytest" errors="1" failures="2" skipped="3" tests="10"/></testsuites>
"""


def test_errors_count_as_failures() -> None:
    assert runner.read_report(REPORT) == runner.Counts(passed=4, failed=3, skipped=3)


def test_the_closing_line_is_the_total_alone() -> None:
    outcomes = [
        runner.Outcome("lint", True, 12.4, None),
        runner.Outcome("engine", False, 100.0, runner.Counts(2, 1, 0)),
        runner.Outcome("serve", True, 60.0, runner.Counts(5, 0, 1)),
    ]
    lines = runner.summary(outcomes).splitlines()
    assert lines[0].split() == ["lint", "ok", "12", "s"]
    assert "FAILED" in lines[1]
    assert lines[-1] == "7 passed, 1 failed, 1 skipped"


@pytest.mark.parametrize(("failing", "status"), [(None, 0), ("engine", 1), ("lint", 1)])
def test_one_failing_session_fails_the_run_but_stops_no_other(
    failing: str | None,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran = []

    def run(session: str) -> runner.Outcome:
        ran.append(session)
        return runner.Outcome(session, session != failing, 1.0, runner.Counts(passed=1))

    monkeypatch.setattr(runner, "run_session", run)
    assert runner.main([]) == status
    assert sorted(ran) == sorted(runner.all_sessions())
    assert capsys.readouterr().out.splitlines()[-1] == f"{len(ran)} passed, 0 failed, 0 skipped"


def test_chains_hold_every_session_once_and_wheels_in_one() -> None:
    side_by_side, after = runner.chains(runner.all_sessions())
    every = [one for chain in side_by_side for one in chain]
    assert sorted(every + after) == sorted(runner.all_sessions())
    assert side_by_side[:2] == [["engine"], ["engine-npu"]]
    wheels = [one for one in runner.all_sessions() if one.startswith("tests-ascend-")]
    assert side_by_side.count(wheels) == 1
    assert all(len(chain) == 1 for chain in side_by_side if chain != wheels)
    assert after == ["operators"]


def test_a_selection_of_sessions_needs_no_other() -> None:
    assert runner.chains(["lint", "docs"]) == ([["lint"], ["docs"]], [])
