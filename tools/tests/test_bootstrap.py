"""What tools/dev says without installing anything, and how uv learns pip's indexes."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from ci.changed import WHOLE_STACK
from tools.bootstrap import HELP, uv_settings
from tools.workspace import ROOT

DEV = ROOT / "tools" / "dev"


def _dev(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(DEV), *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_is_printed() -> None:
    shown = _dev("--help")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, HELP, "")


def test_no_task_is_an_error_that_shows_the_help() -> None:
    shown = _dev()
    assert (shown.returncode, shown.stdout) == (2, HELP)


def test_help_names_every_session_of_nox() -> None:
    sessions = re.findall(r"^@nox\.session\(?(?:name=\"([\w-]+)\"\))?\n", _noxfile(), re.MULTILINE)
    functions = re.findall(r"^def (\w+)\(session", _noxfile(), re.MULTILINE)
    named = [name or function for name, function in zip(sessions, functions, strict=True)]
    proofs = {"interpreter", "compile", "contract", "sim", "operators"}
    others = {"lint", "tests-repo", "demo", "bench", "docs", "build"} | {*WHOLE_STACK}
    assert proofs | others == set(named)
    for name in named:
        assert re.search(rf"\b{name}\b", HELP), name


def test_help_lines_fit_a_terminal() -> None:
    assert max(map(len, HELP.splitlines())) <= 100


def test_a_python_that_is_too_old_is_refused_with_a_remedy(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'Python 3.8.1'\nexit 1\n")
    old.chmod(old.stat().st_mode | stat.S_IXUSR)
    dirname = shutil.which("dirname")
    assert dirname is not None
    (tmp_path / "dirname").symlink_to(dirname)
    shown = subprocess.run(
        ["/bin/sh", str(DEV), "lint"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 1
    assert "3.11, 3.12 or 3.13" in shown.stderr
    assert "Python 3.8.1" in shown.stderr
    assert "ASCEND_DEV_PYTHON=" in shown.stderr


def test_uv_takes_over_the_indexes_of_pip() -> None:
    config = {
        "global.index-url": "https://mirror.example/simple",
        "global.extra-index-url": "file:///a/simple file:///b/simple",
        ":env:.find-links": "/wheels /more",
        "global.find-links": "/ignored",
        "global.trusted-host": "mirror.example",
        "global.cert": "/ca.crt",
    }
    assert uv_settings({}, config) == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "file:///a/simple file:///b/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INSECURE_HOST": "mirror.example",
        "SSL_CERT_FILE": "/ca.crt",
    }


def test_pip_without_settings_changes_nothing() -> None:
    assert uv_settings({}, {":env:.disable-pip-version-check": "1"}) == {}


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS"])
def test_a_uv_that_is_set_up_is_left_alone(name: str) -> None:
    assert uv_settings({name: "x"}, {"global.index-url": "https://mirror.example/simple"}) == {}


def _noxfile() -> str:
    return (ROOT / "noxfile.py").read_text()
