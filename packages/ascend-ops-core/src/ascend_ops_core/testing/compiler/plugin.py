"""pytest options of the compile check, and the run that its tests share.

Installed with the package (entry point ``pytest11``). What ``tests/proofs/test_compile.py`` holds::

    CONFIGURATIONS = compile_configurations("ascend_ops_core")
    LEDGER = Path(__file__).parents[2] / "compile-ledger.json"

    @pytest.mark.parametrize("one", CONFIGURATIONS, ids=str)
    def test_kernel_compiles(one: Configuration, compile_run: CompileRun) -> None:
        compile_run.check(one, CONFIGURATIONS, LEDGER)

    def test_ledger_is_current(compile_run: CompileRun) -> None:
        compile_run.check_ledger(CONFIGURATIONS, LEDGER)
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ascend_ops_core.testing.compiler.configurations import Configuration
    from ascend_ops_core.testing.compiler.ledger import Ledger


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("ascend compile")
    group.addoption(
        "--compile-all",
        action="store_true",
        help="compile every kernel configuration anew and rewrite the ledgers",
    )
    group.addoption(
        "--compile-new",
        action="store_true",
        help="compile what the ledgers lack, drop what nothing uses, and rewrite them",
    )
    group.addoption(
        "--compile-sample",
        type=int,
        default=6,
        metavar="N",
        help="configurations of a ledger that are compiled again (6)",
    )
    group.addoption(
        "--compile-seed",
        default=datetime.date.today().isoformat(),
        metavar="TEXT",
        help="decides which those are (the date)",
    )


class CompileRun:
    """What one test run compiles.

    Args:
        everything: compile all anew and rewrite the ledgers.
        new: compile what the ledgers lack and rewrite them.
        size: configurations of a ledger that are compiled again.
        seed: decides which.
        workers: processes for ``everything`` and ``new``.
    """

    def __init__(
        self, everything: bool, size: int, seed: str, workers: int = 2, *, new: bool = False
    ) -> None:
        self.everything = everything
        self.new = new
        self.size = size
        self.seed = seed
        self.workers = workers
        self._ledgers: dict[Path, Ledger] = {}
        self._again: dict[Path, set[str]] = {}

    def check(self, one: Configuration, current: Sequence[Configuration], file: Path) -> None:
        """Fail unless configuration ``one`` of ``current`` compiles as its ledger says."""
        ledger = self._ledger(current, file)
        ledger.check(one, again=one.key in self._again[file])

    def check_ledger(self, current: Sequence[Configuration], file: Path) -> None:
        """Fail unless the ledger has the configurations of ``current`` and no other."""
        from ascend_ops_core.testing.compiler.ledger import RENEW
        from ascend_ops_core.testing.compiler.toolchain import toolchain

        toolchain()  # without a compiler there are no configurations, and that is no success
        stale = self._ledger(current, file).stale(current)
        listed = "\n".join(stale[:20])
        assert not stale, f"{file.name} of {file.parent.name}: {RENEW}\n{listed}"

    def _ledger(self, current: Sequence[Configuration], file: Path) -> Ledger:
        from ascend_ops_core.testing.compiler.configurations import compile_all
        from ascend_ops_core.testing.compiler.ledger import Ledger, sample
        from ascend_ops_core.testing.compiler.toolchain import toolchain

        if file not in self._ledgers:
            ledger = Ledger(file)
            again: set[str] = set()
            known = [one for one in current if one.key in ledger.results]
            if self.everything:
                ledger.write(compile_all(current, self.workers), toolchain().versions)
            elif self.new:
                lacking = [one for one in current if one.key not in ledger.results]
                ledger.write(compile_all(lacking, self.workers), toolchain().versions, known)
            else:
                again = sample(known, self.size, self.seed)
            self._ledgers[file], self._again[file] = ledger, again
        return self._ledgers[file]


def compile_configurations(namespace: str) -> list[Configuration]:
    """Return a package's configurations; none in an environment without the compiler."""
    from ascend_ops_core.testing.compiler.configurations import configurations
    from ascend_ops_core.testing.compiler.toolchain import missing

    return [] if missing() else configurations(namespace)


@pytest.fixture(scope="session")
def compile_run(request: pytest.FixtureRequest) -> CompileRun:
    """Return the run that ``--compile-all`` and ``--compile-sample`` describe."""
    option = request.config.getoption
    return CompileRun(
        bool(option("--compile-all")),
        int(option("--compile-sample")),
        str(option("--compile-seed")),
        new=bool(option("--compile-new")),
    )
