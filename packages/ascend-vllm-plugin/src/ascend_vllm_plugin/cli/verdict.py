"""Verdicts: what the doctor says about one thing, and the rule that compares versions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from ascend_vllm_plugin.cli.matrix import Tested


class Level(StrEnum):
    """How bad it is. INFO says something about the machine and needs no action."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the report: what was checked, how it stands, what was found, what to do."""

    check: str
    level: Level
    found: str
    remedy: str | None = None

    def __post_init__(self) -> None:
        if self.level in (Level.WARNING, Level.PROBLEM) and not self.remedy:
            raise ValueError(f"the {self.level.value} of {self.check!r} carries no remedy")


def worst(verdicts: list[Verdict]) -> Level:
    """The worst level among `verdicts`; INFO counts as OK."""
    levels = {verdict.level for verdict in verdicts}
    return next((lv for lv in (Level.PROBLEM, Level.WARNING) if lv in levels), Level.OK)


def against_matrix(row: Tested, version: str, remedy: str) -> Verdict:
    """Judge `version` by its row; `remedy` is given with anything but a tested version."""
    tested = ", ".join(row.tested)
    try:
        parsed = Version(version)
    except InvalidVersion:
        return Verdict(row.name, Level.PROBLEM, f"unreadable version {version!r}", remedy)
    if version in row.tested or parsed.public in row.tested:
        return Verdict(row.name, Level.OK, f"{version} (tested)")
    if parsed in SpecifierSet(row.supports, prereleases=True):
        found = f"{version} is not tested (tested: {tested}); expected to work"
        return Verdict(row.name, Level.WARNING, found, remedy)
    found = f"{version} is outside of the supported range {row.supports} (tested: {tested})"
    return Verdict(row.name, Level.PROBLEM, found, remedy)


def pip(requirement: str) -> str:
    """The command that installs `requirement`."""
    return f"pip install '{requirement}'"
