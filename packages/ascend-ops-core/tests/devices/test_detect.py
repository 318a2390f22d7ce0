"""Detection with fakes of torch_npu and npu-smi."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from ascend_ops_core.devices import current_facts, detect, device_family
from ascend_ops_core.devices.detect import detected

INFO = """\
+----------------------------------------------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage |
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)   |
+===========================+===============+=============================================+
| 3     {name:<20}| OK            | 95.1        45                0    / 0        |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3399 / 65536    |
+===========================+===============+=============================================+
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No torch_npu, no npu-smi, nothing remembered."""
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    detected.cache_clear()
    yield
    detected.cache_clear()


@pytest.fixture
def smi(tmp_path: Path) -> Callable[[str, str], None]:
    """Return a function that puts an npu-smi with these answers on PATH."""

    def put(name: str, board: str) -> None:
        (tmp_path / "info").write_text(INFO.format(name=name))
        (tmp_path / "board").write_text(board)
        program = tmp_path / "npu-smi"
        program.write_text(
            "#!/bin/sh\n"
            f'if [ "$*" = "info -t board -i 3 -c 0" ]; then /bin/cat {tmp_path}/board\n'
            f"else /bin/cat {tmp_path}/info; fi\n"
        )
        program.chmod(0o755)

    return put


def torch_npu(name: str = "Ascend910B3", devices: int = 1) -> ModuleType:
    module = ModuleType("torch_npu")
    module.npu = SimpleNamespace(  # type: ignore[attr-defined]
        device_count=lambda: devices, get_device_name=lambda index: name
    )
    return module


def test_nothing_here_says_why() -> None:
    found = detect()
    assert found.facts is None
    assert found.reason == ("no device, because torch_npu is not installed; npu-smi is not on PATH")


def test_torch_npu_that_is_imported_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu())
    found = detect()
    assert found.facts is not None
    assert (found.facts.family, found.facts.cube_cores) == ("A2", 20)
    assert found.reason == "Ascend910B3, as torch_npu tells"


def test_torch_npu_without_cann_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    found = detect()
    assert "torch_npu is installed but CANN is not set up (libhccl.so is not found)" in found.reason
    assert "torch_npu" not in sys.modules


def test_torch_npu_without_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu(devices=0))
    assert "torch_npu sees no device" in detect().reason


def test_torch_npu_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    assert "torch_npu failed: AttributeError" in detect().reason


@pytest.mark.parametrize(
    ("name", "board", "family", "vector_cores"),
    [
        ("910B1", "\tChip Name     : 910B1\n\tNPU Name      : 910B1\n", "A2", 48),
        ("Ascend910", "\tChip Name     : Ascend910\n\tNPU Name      : 9362\n", "A3", 40),
        ("Ascend950PR", "\tChip Name  : Ascend950PR\n\tNPU Name   : 9589\n", "A5", 64),
    ],
)
def test_npu_smi(
    smi: Callable[[str, str], None], name: str, board: str, family: str, vector_cores: int
) -> None:
    smi(name, board)
    found = detect()
    assert found.facts is not None, found.reason
    assert (found.facts.family, found.facts.vector_cores) == (family, vector_cores)
    assert found.reason.endswith("as npu-smi tells")


def test_npu_smi_310p(smi: Callable[[str, str], None]) -> None:
    smi("310P3", "\tChip Name : 310P3\n")
    found = detect()
    assert found.facts is not None
    assert found.facts.family == "310P"


def test_npu_smi_with_an_unknown_chip(smi: Callable[[str, str], None]) -> None:
    smi("910A", "\tChip Name : 910A\n")
    found = detect()
    assert found.facts is None
    assert "no known device, because npu-smi tells soc 'Ascend910A'" in found.reason


def test_npu_smi_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "npu-smi"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    assert "npu-smi failed: Command" in detect().reason


def test_order_of_current_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert current_facts().family == "A2"  # the tiling default: nothing is here
    detected.cache_clear()
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu("Ascend950PR_9589"))
    assert current_facts().vector_cores == 64
    with device_family("A3"):
        assert current_facts().family == "A3"
    assert current_facts().family == "A5"


def test_detection_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    current_facts()

    def never(*_: object, **__: object) -> None:
        raise AssertionError("asked again")

    monkeypatch.setattr(subprocess, "run", never)
    monkeypatch.setattr("ascend_ops_core.devices.npu.refusal_to_import", never)
    assert current_facts().family == "A2"
