"""``ascend-ops compile`` on a user's own file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ascend_ops_core.cli import main

CALL = ("x_ptr=*fp32", "y_ptr=*fp32", "out_ptr=*fp32", "programs=i32")


@pytest.mark.compile
def test_table_of_a_good_kernel(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compile", f"{samples}:add", "--signature", *CALL, "--constants", "BLOCK=2048"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("add, compiled with triton-ascend 3.2.0, ascendnpu-ir 1.2.0")
    rows = {line.split("  ")[0]: line.split() for line in printed.splitlines()}
    assert rows["verdict"] == ["verdict", "ok", "ok", "ok"]
    assert "49,152 B (25.0%)" in printed
    assert "24,576 B (9.7%)" in printed
    assert "nothing ran on a device" in printed


@pytest.mark.compile
def test_what_the_readme_says(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    (block,) = re.findall(
        r"^```sh\n(cat > my_kernels.py.*?)^```$", readme, re.MULTILINE | re.DOTALL
    )
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", block],
        cwd=tmp_path,
        env={**os.environ, "PATH": programs},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"verdict +ok +ok +ok", done.stdout)


@pytest.mark.compile
def test_degraded_kernel_fails(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compile", f"{samples}:add", "--signature", *CALL, "--constants", "BLOCK=16384"]
    assert main([*arguments, "--device", "A5"]) == 0
    assert main([*arguments, "--device", "A5", "--device", "A2"]) == 1
    assert "A2: degraded" in capsys.readouterr().out


@pytest.mark.compile
def test_json_and_kept_modules(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compile", f"{samples}:add", "--signature", *CALL, "--constants", "BLOCK=512"]
    options = ["--options", "multibuffer=False", "--device", "A2", "--json", "--keep"]
    assert main([*arguments, *options, str(tmp_path)]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["ub_bits"]) == (True, 512 * 2 * 4 * 8)
    assert (tmp_path / "A2" / "module.hivm.opt.mlir").exists()


@pytest.mark.compile
@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("add", "it names a module and a kernel"),
        ("nowhere.py:add", "it does not exist"),
        ("no.such.module:add", "No module named"),
        ("json:add", "json has no such name"),
        ("json:dumps", "must be a @triton.jit function"),
    ],
)
def test_kernels_that_cannot_be_found(
    kernel: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", kernel]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.compile
def test_words_that_are_no_pairs(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", f"{samples}:add", "--signature", "x_ptr"]) == 2
    assert "--signature 'x_ptr': each is NAME=VALUE" in capsys.readouterr().err


def test_environment_without_compiler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "ascend_ops_core.testing.compiler.toolchain.missing",
        lambda: "triton-ascend is not installed",
    )
    assert main(["compile", "whatever:kernel"]) == 2
    message = capsys.readouterr().err
    assert "triton-ascend is not installed" in message
    assert "'ascend-ops-core[compile]'" in message
