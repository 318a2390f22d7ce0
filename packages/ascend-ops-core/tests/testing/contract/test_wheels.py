"""Reading wheels: each supported version, each form, and what changed between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.contract import (
    SUPPORTED_WHEELS,
    calls_in_sources,
    changes,
    open_wheel,
    read_schemas,
)
from ascend_ops_core.testing.contract.wheel import NEEDED_FILES, SCHEMAS

pytestmark = pytest.mark.contract


def _report(wheel: Path | str) -> dict[str, Any]:
    command = [sys.executable, "-m", "ascend_ops_core.testing.contract", "--wheel", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("version", SUPPORTED_WHEELS)
def test_every_supported_wheel_registers(wheels: Path, version: str) -> None:
    report = _report(wheels / version)
    assert report["version"] == version
    assert report["operators"] > 400
    assert report["with_meta"] > 240
    assert report["orphan_metas"] == []
    # Named dimensions are gone from torch 2.13, with which the older wheels are read here.
    assert all("names" in name for name in report["refused"])


@pytest.mark.parametrize("version", SUPPORTED_WHEELS)
def test_every_called_operator_is_in_every_wheel(wheels: Path, version: str) -> None:
    schemas = read_schemas(open_wheel(wheels / version))
    missing = {call.op for call in calls_in_sources("ascend_ops_core")} - schemas.keys()
    assert not missing


@pytest.mark.parametrize("version", SUPPORTED_WHEELS)
def test_schemas_are_those_of_a_real_yaml_parser(wheels: Path, version: str) -> None:
    yaml = pytest.importorskip("yaml")
    files = open_wheel(wheels / version)
    content = yaml.safe_load(files.read(SCHEMAS))
    wanted = {entry["func"].split("(")[0]: entry["func"] for entry in content["custom"]}
    for entry in content["symint"]:
        schema = entry["func"] if isinstance(entry, dict) else entry
        if schema.split("(")[0] in wanted:
            wanted[schema.split("(")[0]] = schema
    assert read_schemas(files) == wanted


def test_drift_is_reported(wheels: Path) -> None:
    old, new = (read_schemas(open_wheel(wheels / one)) for one in ("2.10.0.post4", "2.13.0"))
    found = {change.op: change for change in changes(old, new)}
    gating = found["npu_moe_gating_top_k"]
    assert gating.before is not None
    assert gating.after is not None
    assert "tid2eid" not in gating.before
    assert "tid2eid" in gating.after
    assert str(gating).startswith("npu_moe_gating_top_k: ")
    kinds = {(one.before is None, one.after is None) for one in found.values()}
    assert (True, False) in kinds
    assert "npu_rms_norm" not in found


def test_a_wheel_file_is_read_as_its_folder_is(wheels: Path, tmp_path: Path) -> None:
    file = tmp_path / "torch_npu-2.13.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name in NEEDED_FILES:
            archive.write(wheels / "2.13.0" / "torch_npu" / name, f"torch_npu/{name}")
    packed, unpacked = open_wheel(file), open_wheel(wheels / "2.13.0")
    assert packed.version == "2.13.0"
    assert read_schemas(packed) == read_schemas(unpacked)
    assert _report(file) == _report(wheels / "2.13.0" / "torch_npu")


def test_a_path_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"a \.whl file or a folder"):
        open_wheel(tmp_path / "absent.whl")
    with pytest.raises(InvalidInputError, match=r"no file version\.py"):
        open_wheel(tmp_path)


def test_nothing_given_and_nothing_installed_names_the_remedy() -> None:
    variables = {k: v for k, v in os.environ.items() if k != "ASCEND_TORCH_NPU_WHEEL"}
    command = [sys.executable, "-m", "ascend_ops_core.testing.contract"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 1
    assert "ASCEND_TORCH_NPU_WHEEL" in done.stderr
