"""check-model and plan for DeepSeek-V3."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ascend_models_deepseek.testing.tiny_v3 import V3_SPECS, write_v3_checkpoint
from ascend_ops_core.errors import InvalidInputError
from ascend_vllm_plugin.planning.checkpoint import check_checkpoint
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.weights import Layout
from safetensors.torch import load_file, save_file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_v3_checkpoint(V3_SPECS["v3"], tmp_path_factory.mktemp("v3"))


def test_a_checkpoint_that_fits(folder: Path) -> None:
    report = check_checkpoint(folder)
    assert report.problems == []
    assert report.notes == []


def test_what_does_not_fit_is_listed(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.mlp.gate.weight"]
    tensors["model.layers.4.eh_proj.weight"] = tensors["model.layers.4.eh_proj.weight"][:, 1:]
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    assert check_checkpoint(tmp_path).problems == [
        "missing model.layers.2.mlp.gate.weight [16, 128]",
        "shape of model.layers.4.eh_proj.weight is [128, 255], expected [128, 256]",
    ]


def test_weights_are_those_of_the_files(folder: Path) -> None:
    """In float32 a card holds what is stored, its padded vocabulary included."""
    request = PlanRequest("A3", dtype="float32", speculative_tokens=1, max_model_len=1024)
    plan = make_plan(read_model(folder), request)
    stored = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert sum(plan.weights.values()) == stored
    assert plan.weights["dense MLP"] == 3 * 96 * 128 * 4
    (use,) = plan.caches
    assert (use.role, use.layers, use.block_tokens, use.row_bytes) == ("latent_cache", 5, 128, 320)


@pytest.mark.parametrize("layout", [Layout(2), Layout(2, 1, 2)])
def test_ranks_share_the_weights(folder: Path, layout: Layout) -> None:
    model = read_model(folder)
    whole = make_plan(model, PlanRequest("A3", dtype="float32", max_model_len=512)).weights
    part = make_plan(model, PlanRequest("A3", layout, dtype="float32", max_model_len=512)).weights
    for name in ("routed experts", "shared experts", "dense MLP", "embedding", "output head"):
        assert 2 * part[name] == whole[name]
    assert part["router"] == whole["router"]


def test_a_block_size_of_other_caches_is_refused(folder: Path) -> None:
    request = PlanRequest("A3", max_model_len=512, block_size=256)
    with pytest.raises(InvalidInputError, match=r"latent caches .* 128 or 16 tokens"):
        make_plan(read_model(folder), request)


def test_other_models_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(InvalidInputError, match="'deepseek_v4', 'deepseek_v3'"):
        read_model(tmp_path)
