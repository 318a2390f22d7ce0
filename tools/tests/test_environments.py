"""Pins handed to uv, and what the run task says when it cannot run."""

from pathlib import Path

import pytest

from tools import environments
from tools.workspace import ROOT, packages


def test_pins_are_exact_and_hashed() -> None:
    """`==2.13.0` would let a wheel folder's 2.13.0+cpu win and then fail its hash."""
    lines = environments.export("--only-group", "build").splitlines()
    pins = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert any(pin.startswith("hatchling===") for pin in pins)
    for pin in pins:
        assert "===" in pin.split(";")[0], pin
        assert pin.endswith("\\"), f"no hash follows {pin}"


def test_the_overrides_are_those_of_the_workspace() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for pin in environments.OVERRIDES.split():
        assert f'"{pin.replace("===", "==")}"' in text


def test_python_variables_do_not_leak_into_an_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    variables = environments.Environment(tmp_path).variables()
    assert "PYTHONPATH" not in variables
    assert "PYTHONDONTWRITEBYTECODE" not in variables
    assert variables["PATH"].startswith(f"{tmp_path}/bin:")


@pytest.mark.parametrize("count", [0, 2])
def test_a_wheel_that_is_absent_or_ambiguous_is_an_error(tmp_path: Path, count: int) -> None:
    for number in range(count):
        (tmp_path / f"ascend_ops_core-0.{number}-py3-none-any.whl").touch()
    with pytest.raises(FileNotFoundError, match=rf"{count} wheels of ascend-ops-core, wanted 1"):
        environments.wheel_of(packages()["ascend-ops-core"], tmp_path)


def test_run_without_a_command_shows_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert environments.main(["run", "--"]) == 2
    assert "Usage: ./tools/dev run -- COMMAND" in capsys.readouterr().err


def test_run_names_a_command_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "development", lambda: environments.Environment(tmp_path))
    assert environments.main(["run", "--", "no-such-command"]) == 127
    assert capsys.readouterr().err.startswith("no-such-command: ")
