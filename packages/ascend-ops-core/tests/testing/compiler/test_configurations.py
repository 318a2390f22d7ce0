"""From an operator's cases to kernel configurations, and the run that goes through them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_ops_core.cases import Case
from ascend_ops_core.devices import current_facts
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.launch import Launch, launch
from ascend_ops_core.testing.compiler import CompileReport, Counts, configurations, toolchain
from ascend_ops_core.testing.compiler.configurations import Configuration, launches_of
from ascend_ops_core.testing.compiler.ledger import Ledger
from ascend_ops_core.testing.compiler.plugin import CompileRun, compile_configurations

CASE = Case("small", lambda new: (new.randn(3, 64),))


def kernel(x: Any) -> Any:
    return x


def operator(call: Callable[..., Any], supported: bool = True) -> Any:
    return SimpleNamespace(
        name="op",
        qualified_name="package::op",
        npu=("triton",),
        supports=lambda implementation, facts, *arguments: supported,
        call_of=lambda implementation: call,
    )


def start(x: torch.Tensor) -> None:
    constants = {"BLOCK": current_facts().ub_bytes // 1024}
    launch(SimpleNamespace(fn=kernel, arg_names=["x"]), x.shape[0], {"x": x}, constants)


def test_launches_are_those_of_the_family_on_meta_tensors() -> None:
    blocks = {}
    for family in ("A2", "A5"):
        (found,) = launches_of(operator(start), CASE, family)
        assert found.arguments["x"].device.type == "meta"
        blocks[family] = found.constants["BLOCK"]
    assert blocks == {"A2": 192, "A5": 248}


def test_a_refused_case_launches_nothing() -> None:
    assert launches_of(operator(start, supported=False), CASE, "A2") == []


def test_an_implementation_that_needs_values_is_named() -> None:
    def needs_values(x: torch.Tensor) -> None:
        start(x[: int(x.sum())])

    with pytest.raises(RuntimeError, match=r"op, case small, A2: .* must run on meta"):
        launches_of(operator(needs_values), CASE, "A2")


@pytest.fixture
def current() -> list[Configuration]:
    made = SimpleNamespace(fn=kernel, arg_names=["x"])
    return [Configuration(Launch(made, 1, {}, {}), "A2", key, ()) for key in ("k0", "k1")]


def test_everything_or_what_is_lacking_rewrites_the_ledger(
    current: list[Configuration], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_all(chosen: list[Configuration], workers: int) -> list[CompileReport]:
        assert workers == 2
        return [
            CompileReport(
                one.kernel, "A2", "T", "hivm", "", "", (), "aiv", 8, 80, Counts(), 0.1, one.key
            )
            for one in chosen
        ]

    monkeypatch.setattr(configurations, "compile_all", compile_all)
    tools = toolchain.Toolchain("compiler 1", tmp_path, tmp_path)
    monkeypatch.setattr(toolchain, "toolchain", lambda: tools)
    file = tmp_path / "compile-ledger.json"
    stale = CompileRun(everything=False, size=6, seed="monday")
    with pytest.raises(AssertionError, match="lacks A2-kernel-k0"):
        stale.check_ledger(current, file)
    run = CompileRun(everything=True, size=6, seed="monday")
    for one in current:
        run.check(one, current, file)
    run.check_ledger(current, file)
    assert set(Ledger(file).results) == {"k0", "k1"}
    kept = Ledger(file).results["k1"]
    asked: list[list[Configuration]] = []

    def compile_lacking(chosen: list[Configuration], workers: int) -> list[CompileReport]:
        asked.append(chosen)
        return compile_all(chosen, workers)

    monkeypatch.setattr(configurations, "compile_all", compile_lacking)
    current = [current[1], replace(current[0], key="k2")]
    CompileRun(everything=False, size=6, seed="monday", new=True).check_ledger(current, file)
    assert [[one.key for one in chosen] for chosen in asked] == [["k2"]]
    assert set(Ledger(file).results) == {"k1", "k2"}
    assert Ledger(file).results["k1"] == kept


def test_no_compiler_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "missing", lambda: "it is not installed")
    assert compile_configurations("ascend_ops_core") == []
    with pytest.raises(InvalidInputError, match="it is not installed"):
        CompileRun(False, 6, "monday").check_ledger([], tmp_path / "compile-ledger.json")
