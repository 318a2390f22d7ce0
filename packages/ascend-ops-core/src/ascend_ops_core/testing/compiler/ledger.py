"""The committed results of every kernel configuration of a package.

Compiling all of them takes minutes and unchanged ones come out the same, so a test run takes the
result from the package's ``compile-ledger.json`` where the configuration's hash is in it, compiles
the others, and compiles a few of the known ones again to see that the ledger tells the truth.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.compiler.check import compile_launch
from ascend_ops_core.testing.compiler.configurations import Configuration
from ascend_ops_core.testing.compiler.report import CompileReport
from ascend_ops_core.testing.recorder import Record, record

RENEW = "run ./tools/dev compile -- --compile-new (or --compile-all) and commit the ledger"


class Ledger:
    """The results in one file.

    Args:
        file: the ledger; it need not exist yet.

    Raises:
        InvalidInputError: the file is no ledger.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.results: dict[str, dict[str, Any]] = {}
        if file.exists():
            try:
                self.results = dict(json.loads(file.read_text())["results"])
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidInputError(
                    f"ledger {file.name}", f"it cannot be read: {error!r}", f"Remove it and {RENEW}"
                ) from error

    def write(
        self,
        reports: Iterable[CompileReport],
        versions: str,
        keep: Iterable[Configuration] = (),
    ) -> None:
        """Replace the results, one line each, in a fixed order.

        Args:
            reports: new results.
            versions: what the compiler says of itself.
            keep: configurations whose known results stay.
        """
        results = {one.key: self.results[one.key] for one in keep}
        results |= {report.key: report.figures() for report in reports}
        ordered = sorted(results, key=lambda key: (*_place(results[key]), key))
        self.results = {key: results[key] for key in ordered}
        lines = [f"  {json.dumps(key)}: {json.dumps(one)}" for key, one in self.results.items()]
        head = f'{{"compiler": {json.dumps(versions)}, "results": {{\n'
        self.file.write_text(head + ",\n".join(lines) + "\n}}\n")

    def check(self, one: Configuration, again: bool) -> None:
        """Fail unless a configuration compiles; say so to the record of proofs.

        Args:
            one: the configuration.
            again: compile it even if its result is known, and compare.

        Raises:
            AssertionError: it does not compile as written, or not as the ledger says.
        """
        known = self.results.get(one.key)
        figures = known
        if known is None or again:
            figures = compile_launch(one.launch, one.family, cache=not again).figures()
            if known is not None:
                same = json.dumps(known, sort_keys=True) == json.dumps(figures, sort_keys=True)
                assert same, f"{one}: the ledger says {known}, the compiler {figures}; {RENEW}"
        assert figures is not None
        assert not figures["problem"], f"{one}, of {_users(one)}: {figures['problem']}"
        for operator, case in one.uses:
            detail = f"{figures['ub_percent']} % of the unified buffer"
            record(Record(operator, "compile", case, one.family, "triton", detail))

    def stale(self, current: Sequence[Configuration]) -> list[str]:
        """Return what the ledger lacks and what it has too much, in words; empty if nothing."""
        keys = {one.key for one in current}
        lacking = [f"lacks {one}" for one in current if one.key not in self.results]
        surplus = [
            f"has {result['family']}-{result['kernel']}-{key[:8]}, which nothing uses"
            for key, result in self.results.items()
            if key not in keys
        ]
        return lacking + surplus


def sample(current: Sequence[Configuration], size: int, seed: str) -> set[str]:
    """Return the keys of ``size`` configurations, others for another seed.

    Args:
        current: the configurations.
        size: how many at most.
        seed: what decides, such as the date.
    """

    def rank(one: Configuration) -> str:
        return hashlib.sha256(f"{seed} {one.key}".encode()).hexdigest()

    return {one.key for one in sorted(current, key=rank)[:size]}


def _place(figures: dict[str, Any]) -> tuple[str, str]:
    return figures["kernel"], figures["family"]


def _users(one: Configuration) -> str:
    return ", ".join(f"{operator} ({case})" for operator, case in one.uses[:4])
