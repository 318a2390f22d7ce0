"""Checkpoints that do not fit their config are reported whole, from headers alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import SPECS, write_checkpoint
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.quantized_weights.descriptions import MODELSLIM_FILE
from ascend_vllm_plugin.planning.checkpoint import (
    INDEX_FILE,
    CheckpointReport,
    check_checkpoint,
)
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
SPEC = SPECS["mixed"]


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Tensors:
    folder = write_checkpoint(SPEC, tmp_path_factory.mktemp("good"), torch.bfloat16)
    return load_file(folder / "model.safetensors")


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., CheckpointReport]:
    """Write tensors (to one file, or to the files that a function names) and check them."""

    def written(
        tensors: Tensors,
        file_of: Callable[[str], str] = lambda name: "model.safetensors",
        **config: Any,
    ) -> CheckpointReport:
        keys = {**SPEC.original_config(), "torch_dtype": "bfloat16", **config}
        (tmp_path / "config.json").write_text(json.dumps(keys))
        for file in {file_of(name) for name in tensors}:
            save_file({n: t for n, t in tensors.items() if file_of(n) == file}, tmp_path / file)
        return check_checkpoint(tmp_path)

    return written


def test_a_good_checkpoint_has_no_problem(
    tensors: Tensors, check: Callable[..., CheckpointReport]
) -> None:
    report = check(tensors)
    assert report.problems == []
    assert report.notes == []
    assert report.tensors == len(tensors)
    assert report.bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert report.quantization == "model"


def test_every_problem_at_once_with_close_names(
    tensors: Tensors, check: Callable[..., CheckpointReport]
) -> None:
    wrong = dict(tensors)
    wrong["layers.0.attn.wq_aa.weight"] = wrong.pop("layers.0.attn.wq_a.weight")
    wrong["norm.weight"] = torch.zeros(7, dtype=torch.bfloat16)
    wrong["head.weight"] = wrong["head.weight"].to(torch.int8)
    del wrong["mtp.0.enorm.weight"]
    wrong["something.else"] = torch.zeros(2)
    problems = check(wrong).problems
    expected = (
        "missing layers.0.attn.wq_a.weight [64, 128] (closest: layers.0.attn.wq_aa.weight)",
        "unexpected layers.0.attn.wq_aa.weight [64, 128] (closest: layers.0.attn.wq_a.weight)",
        "shape of norm.weight is [7], expected [128]",
        "dtype of head.weight is int8",
        "missing mtp.0.enorm.weight [128]",
        "unexpected something.else [2]",
    )
    assert len(problems) == len(expected)
    for text in expected:
        assert any(text in line for line in problems), text


def test_no_draft_is_a_note(tensors: Tensors, check: Callable[..., CheckpointReport]) -> None:
    main = {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}
    report = check(main)
    assert report.problems == []
    assert "not with MTP" in report.notes[0]


def test_a_draft_that_the_config_denies_is_a_note(
    tensors: Tensors, check: Callable[..., CheckpointReport]
) -> None:
    report = check(tensors, num_nextn_predict_layers=0)
    assert report.problems == []
    assert "num_nextn_predict_layers=0" in report.notes[0]


def test_a_file_cut_short_is_named_and_the_others_are_still_read(
    tensors: Tensors, check: Callable[..., CheckpointReport], tmp_path: Path
) -> None:
    def file_of(name: str) -> str:
        return "a.safetensors" if name.startswith("layers.0.") else "b.safetensors"

    assert check(tensors, file_of).problems == []
    whole = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes(whole[: len(whole) // 2])
    report = check_checkpoint(tmp_path)
    assert "a.safetensors cannot be read" in report.problems[0]
    assert any("missing layers.0.attn_norm.weight" in line for line in report.problems)
    assert not any("layers.1." in line for line in report.problems)


def test_index_and_files_that_disagree(
    tensors: Tensors, check: Callable[..., CheckpointReport], tmp_path: Path
) -> None:
    check(tensors)
    listed = dict.fromkeys(tensors, "model.safetensors")
    listed["norm.weight"] = "lost.safetensors"
    listed["ghost"] = "model.safetensors"
    del listed["head.weight"]
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": listed}))
    report = check_checkpoint(tmp_path)
    text = "\n".join(report.problems)
    assert f"lost.safetensors is missing; {INDEX_FILE} lists 1 tensors in it" in text
    assert "lists ghost in model.safetensors, it is in no readable file" in text
    assert len(report.problems) == 2
    assert report.notes == [f"1 tensors are not listed in {INDEX_FILE}"]
    (tmp_path / INDEX_FILE).write_text("{")
    assert f"{INDEX_FILE} cannot be read" in check_checkpoint(tmp_path).problems[0]


def test_a_tensor_in_two_files(
    tensors: Tensors, check: Callable[..., CheckpointReport], tmp_path: Path
) -> None:
    check(tensors)
    save_file({"norm.weight": tensors["norm.weight"]}, tmp_path / "twice.safetensors")
    assert check_checkpoint(tmp_path).problems == [
        "norm.weight is in model.safetensors and in twice.safetensors"
    ]


def test_no_weights(check: Callable[..., CheckpointReport]) -> None:
    assert "download the weights" in check({}).problems[0]


def test_a_config_that_no_model_has(
    tensors: Tensors, check: Callable[..., CheckpointReport]
) -> None:
    report = check(tensors, head_dim=None)
    assert len(report.problems) == 1
    assert "head_dim" in report.problems[0]
    assert report.tensors == len(tensors)


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no such directory"):
        check_checkpoint(tmp_path / "absent")
    with pytest.raises(InvalidInputError, match=r"no config\.json"):
        check_checkpoint(tmp_path)


def is_matrix(name: str, tensor: torch.Tensor) -> bool:
    """What the published fp8 checkpoints quantize: projections and experts."""
    kept = ("embed.", "head.", "compressor.", "weights_proj.", "gate.", "tok_emb.", "hc_")
    return tensor.ndim == 2 and not any(part in name for part in kept)


def quantized(tensors: Tensors, experts: str) -> Tensors:
    """The same names in the published forms; values do not matter."""
    made: Tensors = {}
    for name, tensor in tensors.items():
        if not is_matrix(name, tensor):
            made[name] = tensor
            continue
        rows, columns = tensor.shape
        scale = name.removesuffix("weight") + "scale"
        if ".ffn.experts." in name and experts == "fp4":
            made[name] = torch.zeros(rows, columns // 2, dtype=torch.int8)
            made[scale] = torch.zeros(rows, columns // 32).to(torch.float8_e8m0fnu)
        else:
            made[name] = torch.zeros(rows, columns).to(torch.float8_e4m3fn)
            powers = torch.float8_e8m0fnu if experts == "fp4" else torch.float32
            made[scale] = torch.zeros(-(-rows // 128), -(-columns // 128)).to(powers)
    return made


@pytest.mark.parametrize("experts", ["fp4", "fp8"])
def test_quantized_checkpoints_are_checked_in_their_own_form(
    tensors: Tensors, check: Callable[..., CheckpointReport], experts: str
) -> None:
    stored = quantized(tensors, experts)
    config = {"quantization_config": {"quant_method": "fp8"}, "expert_dtype": experts}
    report = check(stored, **config)
    assert report.problems == []
    if experts == "fp4":
        assert report.quantization == "fp8 128x128 (e8m0 scales), mxfp4"
    else:
        assert report.quantization == "fp8 128x128 (float32 scales)"
    assert sum("no float8" in line for line in report.notes) == 2

    del stored["layers.0.attn.wq_a.scale"]
    stored["layers.0.attn.wq_a.scales"] = torch.zeros(1, 1)
    stored["layers.0.attn.wkv.weight"] = stored["layers.0.attn.wkv.weight"].to(torch.bfloat16)
    stored["layers.2.attn.indexer.weights_proj.scale"] = torch.zeros(1, 1)
    expert = "layers.1.ffn.experts.0.w1"
    stored[f"{expert}.scale"] = stored[f"{expert}.scale"].to(torch.float16)
    stored["layers.1.attn.wq_b.weight"] = torch.zeros(3, 5).to(torch.float8_e4m3fn)
    text = "\n".join(check(stored, **config).problems)
    for part in (
        "missing layers.0.attn.wq_a.scale [1, 1] (closest: layers.0.attn.wq_a.scales)",
        "unexpected layers.0.attn.wq_a.scales [1, 1]",
        "unexpected layers.2.attn.indexer.weights_proj.scale",
        "dtype of layers.0.attn.wkv.weight is bfloat16, loadable are float8_e4m3fn",
        f"dtype of {expert}.scale is float16",
        "shape of layers.1.attn.wq_b.weight is [3, 5], expected [512, 64]",
    ):
        assert part in text
    assert len(text.splitlines()) == 6


def test_modelslim_description_against_the_files(
    tensors: Tensors, check: Callable[..., CheckpointReport], tmp_path: Path
) -> None:
    stored: Tensors = {}
    description: dict[str, Any] = {"version": "1.0", "group_size": 0}
    for name, tensor in tensors.items():
        stored[name], description[name] = tensor, "FLOAT"
        if is_matrix(name, tensor):
            stored[name] = torch.zeros(tensor.shape, dtype=torch.int8)
            stored[f"{name}_scale"] = torch.zeros(tensor.shape[0], 1)
            description |= dict.fromkeys((name, f"{name}_scale"), "W8A8_DYNAMIC")
    (tmp_path / MODELSLIM_FILE).write_text(json.dumps(description))
    report = check(stored)
    assert report.quantization == "W8A8_DYNAMIC"
    assert report.problems == []

    del stored["layers.0.attn.wq_a.weight_scale"]
    stored["layers.0.attn.wkv.weight"] = tensors["layers.0.attn.wkv.weight"]
    description["layers.1.attn.wq_aa.weight"] = description.pop("layers.1.attn.wq_a.weight")
    description["layers.1.attn.wq_b.weight"] = "W8A8_DYN"
    description["kv_cache_type"] = "C8"
    (tmp_path / MODELSLIM_FILE).write_text(json.dumps(description))
    report = check(stored)
    text = "\n".join(report.problems)
    for part in (
        "missing layers.0.attn.wq_a.weight_scale",
        "dtype of layers.0.attn.wkv.weight is bfloat16",
        "does not describe layers.1.attn.wq_a.weight (closest: layers.1.attn.wq_aa)",
        "has 'W8A8_DYN' for layers.1.attn.wq_b, known are FLOAT",
        "(closest: W8A8_DYNAMIC)",
        "layers.1.attn.wkv is W8A8_DYNAMIC; they are computed as one layer",
    ):
        assert part in text
    assert any("key-value rows in int8" in line for line in report.notes)
    (tmp_path / MODELSLIM_FILE).write_text("[]")
    assert any("no JSON object" in line for line in check(stored).problems)


def test_unknown_quantization(tensors: Tensors, check: Callable[..., CheckpointReport]) -> None:
    report = check(tensors, quantization_config={"quant_method": "gptq"})
    assert report.quantization is None
    assert "'gptq'" in report.problems[0]
