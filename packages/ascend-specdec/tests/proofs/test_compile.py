"""Every Triton kernel configuration of this package compiles for A2, A3 and A5, and fits."""

from __future__ import annotations

from pathlib import Path

import pytest
from ascend_ops_core.testing.compiler.configurations import Configuration
from ascend_ops_core.testing.compiler.plugin import CompileRun, compile_configurations

pytestmark = pytest.mark.compile

CONFIGURATIONS = compile_configurations("ascend_specdec")
LEDGER = Path(__file__).parents[2] / "compile-ledger.json"


@pytest.mark.parametrize("one", CONFIGURATIONS, ids=str)
def test_kernel_compiles(one: Configuration, compile_run: CompileRun) -> None:
    compile_run.check(one, CONFIGURATIONS, LEDGER)


def test_ledger_is_current(compile_run: CompileRun) -> None:
    compile_run.check_ledger(CONFIGURATIONS, LEDGER)
