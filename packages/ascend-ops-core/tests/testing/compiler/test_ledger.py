"""The ledger: what is taken from it, what is compiled, and when it fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.launch import Launch
from ascend_ops_core.testing import recorder
from ascend_ops_core.testing.compiler import CompileReport, Counts, ledger
from ascend_ops_core.testing.compiler.configurations import Configuration
from ascend_ops_core.testing.compiler.ledger import Ledger, sample

GOOD = CompileReport(
    "kernel", "A2", "T", "hivm", "", "", (), "aiv", 500, 1000, Counts(vector=3), 0.1, "k0"
)


def kernel(x: Any) -> Any:
    return x


def configuration(key: str = "k0") -> Configuration:
    launch = Launch(SimpleNamespace(fn=kernel, arg_names=["x"]), 1, {}, {})
    return Configuration(launch, "A2", key, (("ascend_ops_core::op", "small"),))


class Compiler:
    """Counts what is compiled, and answers what it is told."""

    def __init__(self) -> None:
        self.answer = GOOD
        self.calls = 0

    def __call__(self, launch: Launch, family: str, cache: bool = True) -> CompileReport:
        self.calls += 1
        return self.answer


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(ledger, "compile_launch", made)
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "compile-ledger.json"
    Ledger(made).write([GOOD], "compiler 1")
    return made


def test_known_result_is_not_compiled_again(
    file: Path, compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(recorder.VARIABLE, str(tmp_path / "proofs.jsonl"))
    Ledger(file).check(configuration(), again=False)
    assert compiler.calls == 0
    (proof,) = recorder.read(tmp_path)
    assert (proof.op, proof.proof, proof.case) == ("ascend_ops_core::op", "compile", "small")
    assert proof.detail == "50.0 % of the unified buffer"


def test_sampled_result_must_come_out_the_same(file: Path, compiler: Compiler) -> None:
    Ledger(file).check(configuration(), again=True)
    compiler.answer = replace(GOOD, counts=Counts(vector=4))
    with pytest.raises(AssertionError, match="dev compile -- --compile-new"):
        Ledger(file).check(configuration(), again=True)
    assert compiler.calls == 2


def test_unknown_configuration_is_compiled(file: Path, compiler: Compiler) -> None:
    Ledger(file).check(configuration("new"), again=False)
    compiler.answer = replace(GOOD, degraded=("enable-x",))
    with pytest.raises(AssertionError, match=r"of ascend_ops_core::op \(small\): degraded"):
        Ledger(file).check(configuration("new"), again=False)
    assert compiler.calls == 2


def test_a_bad_result_in_the_ledger_fails(file: Path, compiler: Compiler) -> None:
    Ledger(file).write([replace(GOOD, ub_bits=1000)], "compiler 1")
    with pytest.raises(AssertionError, match="filled to 100%"):
        Ledger(file).check(configuration(), again=False)


def test_stale_ledger(file: Path) -> None:
    assert Ledger(file).stale([configuration()]) == []
    assert Ledger(file).stale([configuration("new")]) == [
        "lacks A2-kernel-new",
        "has A2-kernel-k0, which nothing uses",
    ]


def test_file_is_the_same_whatever_the_order(tmp_path: Path) -> None:
    reports = [replace(GOOD, key=f"k{i}", kernel=name) for i, name in enumerate("bac")]
    texts = []
    for order in (reports, reports[::-1]):
        Ledger(tmp_path / "a.json").write(order, "compiler 1")
        texts.append((tmp_path / "a.json").read_text())
    assert texts[0] == texts[1]
    assert len(texts[0].splitlines()) == 5
    assert len(Ledger(tmp_path / "a.json").results) == 3


def test_file_that_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(InvalidInputError, match=r"ledger a\.json: it cannot be read"):
        Ledger(tmp_path / "a.json")
    assert Ledger(tmp_path / "absent.json").results == {}


def test_sample_depends_on_the_seed_alone() -> None:
    current = [configuration(f"k{i}") for i in range(40)]
    assert sample(current, 6, "monday") == sample(current[::-1], 6, "monday")
    assert len(sample(current, 6, "monday")) == 6
    assert sample(current, 6, "monday") != sample(current, 6, "tuesday")
    assert len(sample(current, 99, "monday")) == 40
