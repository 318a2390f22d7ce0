#!/usr/bin/env python3
"""Which nox sessions a change needs.

A file of a package needs that package's tests, those of everything built on it, and the engine and
server tests, which go through all of them. A shared file needs everything. A path that no rule
names is an error, so that a new top-level file cannot stay untested by oversight.

Usage: ci/changed.py GIT_REVISION    prints the sessions for the difference to that revision,
uncommitted and untracked files included.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.workspace import ROOT, packages, with_dependants

# Whatever is installed, built or started by several packages' sessions.
SHARED = (
    ".ci/*",
    ".editorconfig",
    ".gitignore",
    ".pre-commit-config.yaml",
    "LICENSE",
    "ci/*",
    "mkdocs.yml",
    "noxfile.py",
    "pyproject.toml",
    "tools/*",
    "uv.lock",
)
PAGES = ("docs/*", "README.md", "CONTRIBUTING.md")
BENCHMARKS = ("benchmarks/*",)

WHOLE_STACK = ("engine", "engine-npu", "serve")

# Packages that declare operators; docs/ops.md is made from what these sessions record.
OPERATOR_PACKAGES = ("ascend-ops-core", "ascend-fused-moe", "ascend-attention", "ascend-specdec")
PROOFS = ("interpreter", "contract", "sim", "compile")


class UnknownPathError(Exception):
    """A changed path that no rule covers."""


def all_sessions() -> list[str]:
    """Return every session of `./tools/dev test`, in the order in which they run."""
    isolated = [f"tests-{name}" for name in packages()]
    return ["lint", "tests-repo", "docs", *isolated, *PROOFS, "operators", *WHOLE_STACK]


def sessions_for(paths: Iterable[str]) -> list[str]:
    """Return the sessions that a change of `paths` (relative to the repository) needs, in order.

    Raises UnknownPathError naming every path that no rule covers.
    """
    needed: set[str] = set()
    unknown = []
    for path in paths:
        rule = _sessions_for(path)
        if rule is None:
            unknown.append(path)
        else:
            needed |= rule
    if unknown:
        raise UnknownPathError(
            f"no rule in ci/changed.py says what to run for: {', '.join(sorted(unknown))}; add one"
        )
    return [session for session in all_sessions() if session in needed]


def changed_paths(revision: str) -> list[str]:
    """Return the paths that differ between `revision` and the working tree."""
    tracked = _git("diff", "--name-only", "--no-renames", "-z", revision, "--")
    untracked = _git("ls-files", "--others", "--exclude-standard", "-z")
    return sorted({path for path in (tracked + untracked).split("\0") if path})


def _sessions_for(path: str) -> set[str] | None:
    parts = path.split("/")
    if parts[0] == "packages" and len(parts) > 2 and parts[1] in packages():
        above = {f"tests-{package.name}" for package in with_dependants([parts[1]])}
        needed = {"lint", "tests-repo", *above, *WHOLE_STACK}
        if parts[1] in OPERATOR_PACKAGES:
            needed |= {*PROOFS, "operators", *(f"tests-{name}" for name in OPERATOR_PACKAGES)}
        return needed
    if any(fnmatch(path, pattern) for pattern in SHARED):
        return set(all_sessions())
    if any(fnmatch(path, pattern) for pattern in PAGES):
        return {"docs", "tests-repo"}
    if any(fnmatch(path, pattern) for pattern in BENCHMARKS):
        return {"lint"}
    return None


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"git {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    try:
        print("\n".join(sessions_for(changed_paths(arguments[0]))))
    except UnknownPathError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
