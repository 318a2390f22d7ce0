"""The packages of this repository, read from their pyproject.toml files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Package:
    """One distribution: `depends` are the sibling distributions that it names itself."""

    name: str
    directory: Path
    depends: frozenset[str]
    extras: frozenset[str]

    @property
    def import_name(self) -> str:
        return self.name.replace("-", "_")


@cache
def packages() -> dict[str, Package]:
    """Return every package by name, those that others build on first."""
    found = {}
    for file in sorted(ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text())["project"]
        names = {_NAME.match(text)[0] for text in project.get("dependencies", [])}  # type: ignore[index]
        found[project["name"]] = Package(
            name=project["name"],
            directory=file.parent,
            depends=frozenset(names),
            extras=frozenset(project.get("optional-dependencies", {})),
        )
    own = {
        name: Package(name, p.directory, p.depends & found.keys(), p.extras)
        for name, p in found.items()
    }
    return {name: own[name] for name in _lowest_first(own)}


def with_lower(name: str) -> list[Package]:
    """Return `name` and everything that it is built on, lowest first."""
    needed, left = set(), [name]
    while left:
        current = left.pop()
        if current not in needed:
            needed.add(current)
            left.extend(packages()[current].depends)
    return [package for package in packages().values() if package.name in needed]


def with_dependants(names: Iterable[str]) -> list[Package]:
    """Return `names` and everything that is built on one of them, lowest first."""
    wanted = set(names)
    return [
        package
        for package in packages().values()
        if wanted & {lower.name for lower in with_lower(package.name)}
    ]


def _lowest_first(found: dict[str, Package]) -> list[str]:
    ordered: list[str] = []

    def add(name: str) -> None:
        for lower in sorted(found[name].depends):
            add(lower)
        if name not in ordered:
            ordered.append(name)

    for name in sorted(found):
        add(name)
    return ordered
