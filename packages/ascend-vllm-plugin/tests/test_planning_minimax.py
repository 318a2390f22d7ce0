"""check-model and plan know MiniMax-M3, plain and quantised."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ascend_models_minimax.testing import M3_SPECS, write_m3_checkpoint
from ascend_models_minimax.testing.quantized_m3 import quantise_m3_checkpoint
from ascend_ops_core.errors import InvalidInputError
from ascend_vllm_plugin.planning.block_pool import caches_of, pool_of
from ascend_vllm_plugin.planning.checkpoint import check_checkpoint
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.weights import Layout, WeightFormat, parameters, weights_by_part
from safetensors.torch import load_file, save_file

TINY = replace(M3_SPECS["m3"], dense_intermediate_size=128, intermediate_size=128)
PUBLISHED = Path(__file__).parent / "data" / "minimax_m3.json"
LAYER = "language_model.model.layers.2"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {"plain": write_m3_checkpoint(TINY, tmp_path_factory.mktemp("plain"))}
    for layout in ("mxfp8_index_kept", "w8a8_dynamic"):
        made[layout] = tmp_path_factory.mktemp(layout)
        floats = tmp_path_factory.mktemp(f"{layout}_floats")
        quantise_m3_checkpoint(made["plain"], made[layout], floats, layout)
    return made


def test_checkpoints_are_checked(folders: dict[str, Path]) -> None:
    schemes = {}
    for name, folder in folders.items():
        report = check_checkpoint(folder)
        assert report.problems == [], name
        schemes[name] = report.quantization
    assert schemes["plain"] == "model"
    assert schemes["mxfp8_index_kept"] == "mxfp8"
    assert any("not on A3" in note for note in check_checkpoint(folders["mxfp8_index_kept"]).notes)


def test_all_problems_of_a_quantised_one(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["mxfp8_index_kept"]
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"{LAYER}.self_attn.o_proj.weight_scale_inv"]
    del tensors["vision_tower.vision_model.pre_layrnorm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["ignored_layers"].append(f"{LAYER}.self_attn.k_proj")
    (tmp_path / "config.json").write_text(json.dumps(config))
    problems = "\n".join(check_checkpoint(tmp_path).problems)
    assert f"{LAYER}.self_attn.k_proj is not quantised" in problems
    assert f"missing {LAYER}.self_attn.o_proj.weight_scale_inv" in problems
    assert "missing vision_tower.vision_model.pre_layrnorm.weight" in problems


@pytest.mark.parametrize("name", ["plain", "mxfp8_index_kept"])
def test_one_card_takes_the_bytes_of_the_files(folders: dict[str, Path], name: str) -> None:
    """In the files' dtype; only the draft's layers can be told from the rest by their names."""
    source = read_model(folders[name])
    quantised = name != "plain"
    parts = weights_by_part(
        source.spec,
        Layout(),
        torch.float32,
        WeightFormat.STORED if quantised else WeightFormat.MODEL,
        draft=True,
        resolver=source.resolver if quantised else None,
    )
    draft = sum(
        torch.Size(shape).numel() * dtype.itemsize
        for name, (shape, dtype) in source.stored.items()
        if ".mtp." in name
    )
    assert parts["MTP draft"] == draft
    assert sum(parts.values()) == source.stored_bytes
    assert {"indexer", "routed experts", "shared experts", "router", "vision tower"} <= set(parts)


def test_ranks_beyond_the_key_value_heads_hold_one_each(folders: dict[str, Path]) -> None:
    spec = read_model(folders["plain"]).spec
    pools = {
        ranks: pool_of(caches_of(spec, dtype=torch.float32, device="cpu", ranks=ranks))
        for ranks in (1, 2, 4)
    }
    index = sum(TINY.sparse_layers) * TINY.index_dim
    for ranks, pool in pools.items():
        values = len(TINY.sparse_layers) * 2 * max(1, 2 // ranks) * TINY.head_dim
        assert pool.stride == 4 * TINY.block_size * (values + index)
    plan = make_plan(
        read_model(folders["plain"]),
        PlanRequest("A3", Layout(tensor=4), max_model_len=256, dtype="float32"),
    )
    assert plan.pool.stride == pools[4].stride


def test_the_published_shape() -> None:
    """The text model by hand: projections and networks of each kind of layer, and vectors."""
    source = read_model(PUBLISHED)
    hidden, vocab, sparse = 6144, 200064, 57
    attention = 60 * ((2 * 64 + 2 * 4) * 128 * hidden + 2 * 128 + 2 * hidden)
    attention += sparse * (5 * 128 * hidden + 2 * 128)
    dense = 3 * 3 * hidden * 12288
    experts = sparse * (129 * 3 * hidden * 3072 + 128 * hidden + 128)
    text = attention + dense + experts + 2 * vocab * hidden + hidden
    parts = weights_by_part(source.spec, Layout(), torch.bfloat16)
    vision = parts["vision tower"]
    assert 0 < vision < 2.5e9
    assert parameters(source.spec) == pytest.approx(text + vision / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("layout", "settings", "text"),
    [
        (Layout(tensor=3), {}, r"tensor_parallel_size=3.*Use one of"),
        (Layout(tensor=4, context=2), {}, "dcp=2.*MiniMax-M3"),
        (Layout(), {"block_size": 64}, "block_size=64.*128"),
    ],
)
def test_what_cannot_be_is_refused(layout: Layout, settings: dict[str, int], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        make_plan(read_model(PUBLISHED), PlanRequest("A3", layout, **settings))
