"""A front end that crashes: tried once more, and never remembered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ascend_ops_core.testing.compiler import CompileReport, compile_kernel

pytestmark = pytest.mark.compile

Kernel = Callable[[str], Any]

CRASHING = """\
#!/bin/sh
echo run >> {runs}
[ $(wc -l < {runs}) -gt {crashes} ] || kill -SEGV $$
exec {real} "$@"
"""


@pytest.fixture
def compiled(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], CompileReport]:
    """Return a function that compiles a good kernel with a front end that crashes so often."""
    ascend = pytest.importorskip("triton.backends.ascend.compiler")
    program, runs = tmp_path / "front-end", tmp_path / "runs"
    real = ascend._get_triton_adapter_opt_path()
    monkeypatch.setattr(ascend, "_get_triton_adapter_opt_path", lambda: str(program))
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "programs": "i32"}

    def run(crashes: int) -> CompileReport:
        program.write_text(CRASHING.format(runs=runs, crashes=crashes, real=real))
        program.chmod(0o755)
        return compile_kernel(kernel("add"), signature, {"BLOCK": 1024}, "A2")

    return run


def test_one_crash_is_forgiven(compiled: Callable[[int], CompileReport], cache: Path) -> None:
    report = compiled(1)
    assert report.ok, report.problem
    assert report.error == ""
    assert len(list(cache.rglob("*.json"))) == 1


def test_second_crash_is_reported_and_not_remembered(
    compiled: Callable[[int], CompileReport], cache: Path
) -> None:
    report = compiled(2)
    assert report.problem.startswith("crash after stage ttir: crashed twice: ")
    assert not list(cache.rglob("*.json"))
    assert compiled(2).ok
