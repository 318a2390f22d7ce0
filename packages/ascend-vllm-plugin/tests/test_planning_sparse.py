"""check-model and plan know DeepSeek-V3.2 and GLM-5."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ascend_models_deepseek.testing.tiny_v32 import V32_SPECS, write_v32_checkpoint
from ascend_vllm_plugin.planning.checkpoint import check_checkpoint
from ascend_vllm_plugin.planning.models import caches_of_layer, read_spec
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.weights import parameters
from safetensors.torch import load_file, save_file


@pytest.mark.parametrize("name", ["v32", "glm"])
def test_checkpoints_are_checked(name: str, tmp_path: Path) -> None:
    folder = write_v32_checkpoint(V32_SPECS[name], tmp_path)
    assert check_checkpoint(folder).problems == []
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.self_attn.indexer.wk.weight"]
    save_file(tensors, folder / "model.safetensors")
    problems = check_checkpoint(folder).problems
    assert len(problems) == 1
    assert "missing model.layers.0.self_attn.indexer.wk.weight" in problems[0]


@pytest.mark.parametrize(
    ("name", "billions"), [("deepseek_v3", 671), ("deepseek_v32", 671), ("glm_5", 744)]
)
def test_published_shapes_have_the_published_number_of_parameters(name: str, billions: int) -> None:
    """Without the MTP layer; V3.2's indexers add 0.9 billion to V3's 671."""
    data = Path(__file__).parent / "data" / f"{name}.json"
    assert parameters(read_model(data).spec) / 1e9 == pytest.approx(billions, rel=0.002)


@pytest.mark.parametrize(("keep", "row_bytes"), [(True, 64), (False, 34)])
def test_caches_are_counted(keep: bool, row_bytes: int) -> None:
    """GLM-5's third layer has no indexer, and the keys of the others follow the family."""
    spec = read_spec(V32_SPECS["glm"].published_config())
    found = [
        caches_of_layer(
            spec, layer, dtype=torch.bfloat16, device="A3", block_tokens=None, keep_dtype=keep
        )
        for layer in (1, 2)
    ]
    assert [[kind.row_bytes for kind in kinds] for kinds in found] == [[128, row_bytes], [128]]
