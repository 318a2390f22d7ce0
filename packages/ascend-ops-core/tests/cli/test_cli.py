"""The command `ascend-ops`."""

from __future__ import annotations

import importlib.metadata
import json

import pytest
from ascend_ops_core.cli import doctor, main


def test_help_names_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(task in out for task in ("list", "doctor"))
    assert "Needs no NPU" in out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "ascend_ops_core::rms_norm" in out
    assert "not run on hardware" in out
    assert main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"operator", "schema", "description", "npu"} == rows[0].keys()
    assert all(row["description"] for row in rows)


def test_list_of_one_operator_gives_choice_and_reasons(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list", "rms_norm", "--device", "A2", "--json"]) == 0
    choices = json.loads(capsys.readouterr().out)["choices"]
    by_case = {choice["case"]: choice for choice in choices}
    assert by_case["same_dtype"]["implementation"] == "torch_npu"
    assert by_case["unweighted"]["implementation"] == "triton"
    assert by_case["unweighted"]["refused"] == {"torch_npu": "no weight, npu_rms_norm needs one"}
    assert main(["list", "ascend_ops_core::rms_norm"]) == 0
    assert "310P" in capsys.readouterr().out


def test_an_unknown_operator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "no_such"]) == 2
    assert "ascend_ops_core::no_such" in capsys.readouterr().err


def test_doctor_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert importlib.metadata.version("torch") in out
    assert "no device, because" in out


def _examined(versions: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, doctor.Line]:
    monkeypatch.setattr(doctor, "_version", versions.get)
    return {line.subject: line for line in doctor.examine()}


def test_doctor_on_other_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"torch": "2.13.0+cpu", "numba": "0.65.0"}
    assert {line.verdict for line in _examined(good, monkeypatch).values()} == {"ok", "note"}
    old = _examined(good | {"torch": "2.12.1"}, monkeypatch)["torch"]
    assert old.verdict == "problem"
    assert "pip install 'torch" in old.remedy
    assert _examined({}, monkeypatch)["torch"].verdict == "problem"
    both = _examined(good | {"triton": "3.7.1", "triton-ascend": "3.2.0"}, monkeypatch)["triton"]
    assert both.verdict == "problem"
    npu = _examined(good | {"torch-npu": "2.12.0"}, monkeypatch)["torch_npu"]
    assert npu.verdict == "problem"
    compiler = {"triton-ascend": "3.2.0", "ascendnpu-ir": "1.2.0"}
    monkeypatch.setattr(doctor, "has_module", lambda: False)
    damaged = _examined(good | compiler, monkeypatch)["triton"]
    assert damaged.verdict == "problem"
    assert damaged.remedy.endswith("triton-ascend==3.2.0")
    monkeypatch.setattr(doctor, "has_module", lambda: True)
    assert "compile` works" in _examined(good | compiler, monkeypatch)["triton"].found
    assert _examined(good, monkeypatch)["numba"].verdict == "ok"
    assert "slower" in _examined({"torch": "2.13.0"}, monkeypatch)["numba"].found


def test_doctor_judges_forced_implementations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_OPS", "rms_norm")
    assert main(["doctor"]) == 1
    monkeypatch.setenv("ASCEND_OPS", "rms_norm=triton")
    assert main(["doctor"]) == 0
