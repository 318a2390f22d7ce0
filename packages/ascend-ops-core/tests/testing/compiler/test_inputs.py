"""What goes into a check: signatures, hashes, the compiler itself, messages and reports."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.launch import Launch
from ascend_ops_core.testing.compiler import (
    CompileReport,
    Counts,
    constants_of,
    missing,
    signature_of,
)
from ascend_ops_core.testing.compiler.bishengir import classify, shortened
from ascend_ops_core.testing.compiler.fingerprint import fingerprint
from ascend_ops_core.testing.compiler.toolchain import toolchain


def launch(**arguments: Any) -> Launch:
    return Launch(None, 1, arguments, {"BLOCK": 64})


def test_signature_of_a_launch_on_meta_tensors() -> None:
    made = launch(
        x=torch.empty(3, dtype=torch.bfloat16, device="meta"),
        mask=torch.empty(3, dtype=torch.bool, device="meta"),
        fp8=torch.empty(3, dtype=torch.float8_e4m3fn, device="meta"),
        one=1,
        low=-(2**31),
        high=2**31,
        scale=0.5,
        flag=True,
        bias=None,
    )
    assert signature_of(made) == {
        "x": "*bf16",
        "mask": "*i1",
        "fp8": "*fp8e4nv",
        "one": "i32",
        "low": "i32",
        "high": "i64",
        "scale": "fp32",
        "flag": "i1",
    }
    assert constants_of(made) == {"bias": None, "BLOCK": 64}


@pytest.mark.parametrize("value", ["text", torch.empty(1, dtype=torch.complex64, device="meta")])
def test_arguments_without_a_type_are_refused(value: object) -> None:
    with pytest.raises(InvalidInputError, match="argument x of"):
        signature_of(launch(x=value))


@pytest.fixture
def define(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that makes a jit function of source text and outer names."""

    def make(source: str, **outside: Any) -> Any:
        file = tmp_path / f"made_{len(list(tmp_path.iterdir()))}.py"
        file.write_text(source)
        names = {"__name__": "made", **outside}
        exec(compile(source, str(file), "exec"), names)
        return SimpleNamespace(fn=names["kernel"], arg_names=["x"])

    return make


def hashed(kernel: Any, **changed: Any) -> str:
    parts = {
        "signature": {"x": "i32"},
        "constants": {"BLOCK": 1},
        "target": "T",
        "options": {},
        "versions": "1",
    }
    return fingerprint(kernel, **{**parts, **changed})


def test_hash_depends_on_what_the_compiler_sees(define: Callable[..., Any]) -> None:
    plain = define("def kernel(x):\n    return x + SIZE\n", SIZE=1)
    dressed = define(
        'import os\n\n\ndef kernel(x):\n    """Says more."""\n    # a comment\n'
        "    return (x\n            + SIZE)\n",
        SIZE=1,
    )
    assert hashed(plain) == hashed(dressed)
    others = [
        hashed(define("def kernel(x):\n    return x - SIZE\n", SIZE=1)),
        hashed(define("def kernel(x):\n    return x + SIZE\n", SIZE=2)),
        hashed(plain, signature={"x": "i64"}),
        hashed(plain, constants={"BLOCK": 2}),
        hashed(plain, target="U"),
        hashed(plain, options={"multibuffer": False}),
        hashed(plain, versions="2"),
    ]
    assert len({hashed(plain), *others}) == 8


def test_hash_follows_the_jit_functions_that_are_called(define: Callable[..., Any]) -> None:
    first = define("def kernel(x):\n    return x + 1\n")
    second = define("def kernel(x):\n    return x + 2\n")
    caller = "def kernel(x):\n    return helpers.inner(x)\n"
    hashes = {hashed(define(caller, helpers=SimpleNamespace(inner=one))) for one in (first, second)}
    assert len(hashes) == 2


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("error: ub overflow, requires 4194304 bits while 1572864 bits available!", "ub_overflow"),
        ("error: cbuf overflow, requires 9 bits", "l1_overflow"),
        ("error: cc overflow, requires 2097152 bits", "l0_overflow"),
        ("x.h:650: f(): Assertion `detail::isPresent(Val)' failed.", "crash"),
        ("error: failed to legalize operation 'linalg.reduce'", "unsupported_op"),
        ("CompilationError: at 3:8:\nValueError('unexpected type fp8.')", "unsupported_type"),
        ("AttributeError: no such thing", "frontend"),
        ("error: 'tt.load' op wants more", "invalid_ir"),
        ("nobody knows", "other"),
    ],
)
def test_classes_of_messages(message: str, kind: str) -> None:
    assert classify(message) == kind


def test_reason_of_a_front_end_comes_first() -> None:
    message = "CompilationError: at 3:8:\n    x = y\n        ^\nNameError('y')"
    assert shortened(message).splitlines()[:2] == ["NameError('y')", "CompilationError: at 3:8:"]


def test_stand_in_hands_the_module_on(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascend_ops_core.testing.compiler.toolchain.missing", lambda: "")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1")
    monkeypatch.setattr(
        importlib.metadata,
        "distribution",
        lambda name: SimpleNamespace(locate_file=lambda path: tmp_path / path),
    )
    program = toolchain().stand_ins / "hivmc"
    assert program.is_relative_to(cache)
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("hivmc 1.2.0 (0000000 20")
    (tmp_path / "in.mlir").write_text("module {}")
    subprocess.run([program, "--flag", "in.mlir", "-o", "out"], cwd=tmp_path, check=True)
    assert (tmp_path / "out").read_text() == "module {}"


def test_stock_triton_beside_the_compiler_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"triton-ascend": "3.2.0", "ascendnpu-ir": "1.2.0", "pybind11": "3.1.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    module = importlib.util.spec_from_loader("triton", None, origin="triton/__init__.py")
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: module)
    assert missing() == ""
    installed["triton"] = "3.7.1"
    assert missing() == "stock Triton 3.7.1 is installed over the same module"
    del installed["pybind11"]
    assert missing() == "pybind11 is not installed"


@pytest.mark.parametrize("left", [None, importlib.util.spec_from_loader("triton", None)])
def test_module_that_went_with_stock_triton_is_noticed(
    left: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name == "triton":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: left)
    assert missing() == "stock Triton was removed, and the shared module with it"


def report(**changed: Any) -> CompileReport:
    values: dict[str, Any] = {
        "kernel": "k",
        "family": "A2",
        "target": "Ascend910B1",
        "stage": "hivm",
        "error": "",
        "error_class": "",
        "degraded": (),
        "mix_mode": "aiv",
        "ub_bits": 1000,
        "ub_limit_bits": 2000,
        "counts": Counts(vector=3),
        "seconds": 0.5,
        "key": "ab",
    }
    return CompileReport(**{**values, **changed})


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, ""),
        ({"ub_bits": 0}, ""),
        ({"ub_bits": 2000}, "unified buffer filled to 100%"),
        ({"degraded": ("enable-x",)}, "degraded: the compiler retried without enable-x"),
        (
            {"stage": "linalg", "error": "no\nmore", "error_class": "crash", "counts": None},
            "crash after stage linalg: no",
        ),
    ],
)
def test_reports(changed: dict[str, Any], problem: str) -> None:
    made = report(**changed)
    assert made.ok == (not problem)
    assert made.problem.startswith(problem)
    assert CompileReport.from_json(made.to_json()) == made
    assert made.figures()["problem"] == made.problem
