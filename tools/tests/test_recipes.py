"""Recipes are of their form, fit, are commands that vLLM takes, and the page is theirs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from ascend_ops_core.errors import InvalidInputError
from ascend_vllm_plugin.planning.hccl import VARIABLE

from tools import recipes, recipes_page

FILES = sorted(recipes.FOLDER.glob("*.yaml"))
SETTINGS: dict[str, Any] = {
    "model": "M",
    "shape": "deepseek_v4_flash.json",
    "status": "planned, not run on hardware",
    "deployments": [
        {
            "name": "one",
            "device": "A2",
            "weight_format": "w8a8",
            "tensor_parallel": 8,
            "expert_parallel": True,
            "max_model_len": 4096,
            "why": "test",
        }
    ],
}


def written(folder: Path, **changes: Any) -> Path:
    file = folder / "m.yaml"
    deployment = SETTINGS["deployments"][0] | changes
    file.write_text(yaml.safe_dump(SETTINGS | {"deployments": [deployment]}))
    return file


def test_there_are_recipes_and_everything_made_from_them_is_up_to_date() -> None:
    assert len(FILES) >= 2
    assert recipes_page.main(["--check"]) == 0, "run ./tools/dev run -- tools/recipes_page.py"


def test_vllm_takes_every_command() -> None:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    for file in FILES:
        for deployment in recipes.read(file).deployments:
            words = shlex.split(str(deployment.command))
            assert words[:3] == ["vllm", "serve", "MODEL_DIR"]
            given = parser.parse_args(words[2:])
            assert given.max_model_len == deployment.max_model_len
            assert given.tensor_parallel_size == deployment.tensor_parallel
            assert given.enable_expert_parallel == deployment.expert_parallel
            drafts = given.speculative_config or {"num_speculative_tokens": 0}
            assert drafts["num_speculative_tokens"] == deployment.speculative_tokens


def test_all_that_is_wrong_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, device="B7", tensor_parallel=0, max_modle_len=3)
    with pytest.raises(InvalidInputError) as refused:
        recipes.read(file)
    for name in ("device", "tensor_parallel", "max_modle_len"):
        assert name in str(refused.value)


def test_two_deployments_of_a_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(yaml.safe_dump(SETTINGS | {"deployments": SETTINGS["deployments"] * 2}))
    with pytest.raises(InvalidInputError, match="same name: one"):
        recipes.read(file)


def test_what_does_not_fit_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no context fits"):
        recipes.completed(recipes.read(written(tmp_path, tensor_parallel=2)))


def test_a_buffer_of_hccl_that_is_too_small_is_refused(tmp_path: Path) -> None:
    small = recipes.read(written(tmp_path, hccl_buffsize=1))
    with pytest.raises(InvalidInputError, match="hccl_buffsize=1") as refused:
        recipes.completed(small)
    needed = int(refused.value.remedy.split()[-1].removesuffix("."))
    enough = recipes.completed(recipes.read(written(tmp_path, hccl_buffsize=needed)))
    assert str(enough.deployments[0].command).startswith(f"{VARIABLE}={needed} vllm serve")


def test_defaults_are_left_out_and_nothing_else(tmp_path: Path) -> None:
    completed = recipes.completed(recipes.read(written(tmp_path)))
    text = recipes.text_of(completed)
    assert "gpu_memory_utilization: 0.92" not in text
    again = tmp_path / "again.yaml"
    again.write_text(text)
    assert recipes.read(again) == completed


def test_the_schema_is_that_of_the_form() -> None:
    stored = json.loads((recipes.FOLDER / "schema.json").read_text())
    assert set(stored["$defs"]["Deployment"]["properties"]) == set(recipes.Deployment.model_fields)
