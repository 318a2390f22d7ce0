"""A rotated target and its draft's weight give what the plain pair gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.qwen3_blocks.rotation import merge_rotation, target_rotation
from safetensors.torch import save_file

WIDTH = 8


def rotation() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0].contiguous()


@pytest.mark.parametrize("layers", [1, 3, 5])
def test_merged_weights_read_rotated_states(layers: int) -> None:
    torch.manual_seed(layers)
    q = rotation()
    weight, states = torch.randn(WIDTH, layers * WIDTH), torch.randn(4, layers, WIDTH)
    plain = states.flatten(1) @ weight.T
    rotated = (states @ q).flatten(1) @ merge_rotation(weight, q).T
    torch.testing.assert_close(rotated, plain, atol=1e-5, rtol=1e-5)


def test_the_rotation_is_the_one_that_the_description_names(tmp_path: Path) -> None:
    assert target_rotation(str(tmp_path)) is None
    description = tmp_path / "quant_model_description.json"
    description.write_text(json.dumps({"model.layers.0.weight": "W8A8"}))
    assert target_rotation(str(tmp_path)) is None
    named = {"quarot": {"rotation_map": {"global_rotation": "rotation.safetensors"}}}
    description.write_text(json.dumps({"optional": named}))
    with pytest.raises(InvalidInputError, match=r"rotation\.safetensors"):
        target_rotation(str(tmp_path))
    save_file({"other": torch.ones(2)}, tmp_path / "rotation.safetensors")
    with pytest.raises(InvalidInputError, match=r"rotation\.safetensors"):
        target_rotation(str(tmp_path))
    save_file(
        {"other": torch.ones(2), "global_rotation": rotation()}, tmp_path / "rotation.safetensors"
    )
    found = target_rotation(str(tmp_path))
    assert found is not None
    assert torch.equal(found, rotation())


def test_a_weight_of_another_width_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"fc\.weight of shape \[8, 12\]"):
        merge_rotation(torch.zeros(8, 12), rotation())
