"""Pins handed to uv, and what the run task says when it cannot run."""

import py_compile
import subprocess
import sys
from importlib.util import cache_from_source
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


def test_bytecode_of_the_same_sources_is_shared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Linked where the source exists and has none yet; a changed source is compiled anew."""
    monkeypatch.setattr(environments, "CACHE", tmp_path)
    packages_of = {}
    for name in ("first", "second"):
        folder = tmp_path / "envs" / name / "lib" / "python3" / "site-packages" / "module"
        folder.mkdir(parents=True)
        packages_of[name] = folder
    first, second = packages_of["first"], packages_of["second"]
    for file in ("same", "changed", "absent", "own"):
        (first / f"{file}.py").write_text("value = 1\n")
        py_compile.compile(str(first / f"{file}.py"))
    for file in ("same", "own"):
        (second / f"{file}.py").hardlink_to(first / f"{file}.py")
    (second / "changed.py").write_text("value = 22\n")
    py_compile.compile(str(second / "own.py"))
    before = Path(cache_from_source(str(second / "own.py"))).stat().st_ino

    environments._share_bytecode(environments.Environment(tmp_path / "envs" / "second"))
    linked = {file.name.split(".")[0] for file in second.glob("__pycache__/*.pyc")}
    assert linked == {"same", "changed", "own"}
    assert Path(cache_from_source(str(second / "own.py"))).stat().st_ino == before
    program = "import same, changed; print(same.value, changed.value, same.__cached__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(second)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[:2] == ["1", "22"]
    used = Path(cache_from_source(str(second / "same.py")))
    assert done.stdout.split()[2] == str(used)
    assert used.samefile(cache_from_source(str(first / "same.py")))


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
