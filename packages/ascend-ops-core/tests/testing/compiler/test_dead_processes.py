"""A compiler whose process dies: what was compiled is kept, and what killed it is tried again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from ascend_ops_core.testing.compiler.configurations import compile_all

DEADLY = 2
deaths = Path()


def compile_one(index: int) -> Any:
    """Stand for a compiler that dies on one configuration as often as the folder has room."""
    if index == DEADLY:
        for death in sorted(deaths.iterdir()):
            death.unlink()
            os._exit(11)
    return f"report {index}"


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys.modules[__name__], "deaths", tmp_path)
    monkeypatch.setattr(sys.modules[compile_all.__module__], "_compile_one", compile_one)
    return tmp_path


@pytest.mark.parametrize("times", [0, 1, 3])
def test_the_reports_are_whole_and_in_their_order(compiler: Path, times: int) -> None:
    for number in range(times):
        (compiler / str(number)).touch()
    chosen: Any = [f"kernel {index}" for index in range(6)]
    assert compile_all(chosen) == [f"report {index}" for index in range(6)]
    assert not list(compiler.iterdir())


def test_what_always_kills_it_is_named(compiler: Path) -> None:
    for number in range(4):
        (compiler / str(number)).touch()
    chosen: Any = [f"kernel {index}" for index in range(4)]
    with pytest.raises(RuntimeError, match=f"died 3 times on kernel {DEADLY}"):
        compile_all(chosen)
