"""`ascend-vllm check-model` and `ascend-vllm ops`: output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from ascend_models_deepseek.testing import SPECS, write_checkpoint
from ascend_vllm_plugin.cli.app import app
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(SPECS["tensor_parallel"], tmp_path_factory.mktemp("good"))


def test_a_good_checkpoint_ends_with_0(good: Path) -> None:
    result = CliRunner().invoke(app, ["check-model", str(good)])
    assert result.exit_code == 0, result.output
    assert "No problem: every tensor fits the model." in result.output
    report = json.loads(CliRunner().invoke(app, ["check-model", str(good), "--json"]).stdout)
    assert report["fits"]
    assert report["problems"] == report["notes"] == []


def test_a_bad_one_ends_with_1_and_lists_everything(good: Path, tmp_path: Path) -> None:
    tensors = load_file(good / "model.safetensors")
    tensors["norms.weight"] = tensors.pop("norm.weight")
    tensors["head.weight"] = torch.zeros(1, 2)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((good / "config.json").read_text())
    result = CliRunner().invoke(app, ["check-model", str(tmp_path)])
    assert result.exit_code == 1
    for text in (
        "problem  missing norm.weight [128] (closest: norms.weight)",
        "problem  unexpected norms.weight [128] (closest: norm.weight)",
        "problem  shape of head.weight is [1, 2], expected [512, 128]",
        "3 problem(s): this checkpoint cannot be served.",
    ):
        assert text in result.output
    report = json.loads(CliRunner().invoke(app, ["check-model", str(tmp_path), "--json"]).stdout)
    assert len(report["problems"]) == 3
    assert not report["fits"]


def test_no_model_ends_with_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["check-model", str(tmp_path / "absent")])
    assert result.exit_code == 2
    assert "there is no such directory" in result.output
