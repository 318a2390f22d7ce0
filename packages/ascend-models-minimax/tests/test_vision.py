"""The vision tower against transformers', on grids of odd sizes and on segments of a video."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ascend_models_minimax.minimax_m3.vision.config import VisionSpec
from ascend_models_minimax.minimax_m3.vision.grid import patch_positions, segments
from ascend_models_minimax.minimax_m3.vision.tower import MiniMaxM3VisionModel
from ascend_models_minimax.minimax_m3.vision.weights import vision_rules
from ascend_models_minimax.testing import M3_SPECS, M3Oracle, write_m3_checkpoint
from ascend_ops_core import InvalidInputError
from ascend_ops_core.checkpoint.table import WeightTable
from ascend_ops_core.testing.language_models import oracle_run
from safetensors.torch import load_file

TEXT = ("language_model.",)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> M3Oracle:
    spec = replace(M3_SPECS["m3"], sparse_layers=(0,), moe_layers=(0,), mtp="none")
    return M3Oracle(write_m3_checkpoint(spec, tmp_path_factory.mktemp("vision")))


@pytest.fixture(scope="module")
def tower(oracle: M3Oracle) -> MiniMaxM3VisionModel:
    return load(oracle.directory, VisionSpec.from_config(M3_SPECS["m3"].published_config()))


def load(folder: Path, spec: VisionSpec) -> MiniMaxM3VisionModel:
    model = MiniMaxM3VisionModel(spec, torch.float32)
    # A parameter that no tensor fills shows.
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    table = WeightTable(dict(vision_rules(spec, "")), TEXT)
    table.load(model, load_file(folder / "model.safetensors").items())
    return model


@oracle_run()
def theirs(
    oracle: M3Oracle, pixels: torch.Tensor, grids: list[tuple[int, int, int]]
) -> torch.Tensor:
    """All embeddings that transformers makes of these patches."""
    grid = torch.tensor(grids)
    return torch.cat(oracle.model.get_image_features(pixels, grid, return_dict=True).pooler_output)


@pytest.mark.parametrize(
    "grids",
    [[(1, 2, 2)], [(1, 4, 6), (1, 10, 2), (1, 2, 8)], [(3, 4, 2), (1, 2, 2)]],
    ids=["one window", "images of odd sizes", "video and image"],
)
def test_embeddings_equal_transformers(
    oracle: M3Oracle, tower: MiniMaxM3VisionModel, grids: list[tuple[int, int, int]]
) -> None:
    pixels = patches(grids)
    ours = tower(pixels, grids)
    assert [len(one) for one in ours] == [t * h * w // 4 for t, h, w in grids]
    torch.testing.assert_close(torch.cat(ours), theirs(oracle, pixels, grids), atol=2e-5, rtol=1e-5)


def test_a_long_video_attends_in_segments(oracle: M3Oracle, tower: MiniMaxM3VisionModel) -> None:
    """transformers' processor cuts videos, and gives its tower the parts as grids of their own."""
    pixels = patches([(9, 2, 4)])
    parts = [(4, 2, 4), (4, 2, 4), (1, 2, 4)]
    ours = tower(pixels, [(9, 2, 4)])
    assert len(ours) == 1
    torch.testing.assert_close(ours[0], theirs(oracle, pixels, parts), atol=2e-5, rtol=1e-5)
    whole = load(oracle.directory, replace(tower.spec, segment_frames=None))
    assert float((whole(pixels, [(9, 2, 4)])[0] - ours[0]).abs().max()) > 1e-3


def test_images_do_not_see_each_other(tower: MiniMaxM3VisionModel) -> None:
    grids = [(1, 4, 6), (1, 2, 4)]
    pixels = patches(grids)
    alone = tower(pixels[:24], grids[:1])[0]
    torch.testing.assert_close(tower(pixels, grids)[0], alone, atol=1e-6, rtol=1e-6)


def test_no_images_give_no_embeddings(tower: MiniMaxM3VisionModel) -> None:
    assert tower.patch_embedding(torch.zeros(0, tower.spec.patch_values)).shape == (0, 64)


def patches(grids: list[tuple[int, int, int]]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(grids))
    count = sum(t * h * w for t, h, w in grids)
    return torch.randn(count, 1176, generator=generator)


def test_the_order_of_patches_by_hand() -> None:
    rows = patch_positions((2, 2, 4), 2)[:, 1:].tolist()
    window = [[0, 0], [0, 1], [1, 0], [1, 1]]
    right = [[r, c + 2] for r, c in window]
    assert rows == (window + right) * 2
    assert patch_positions((2, 2, 4), 2)[:, 0].tolist() == [0] * 8 + [1] * 8
    assert segments([(5, 2, 2), (1, 4, 4)], 2) == [(2, 2, 2), (2, 2, 2), (1, 2, 2), (1, 4, 4)]
    assert segments([(5, 2, 2)], None) == [(5, 2, 2)]


def test_patches_that_do_not_fit_are_refused(tower: MiniMaxM3VisionModel) -> None:
    with pytest.raises(InvalidInputError, match=r"patches of shape \[3, 1176\]"):
        tower(torch.zeros(3, 1176), [(1, 2, 2)])
    with pytest.raises(InvalidInputError, match=r"patches of shape \[4, 1175\]"):
        tower(torch.zeros(4, 1175), [(1, 2, 2)])
    with pytest.raises(InvalidInputError, match="windows of 2 x 2"):
        tower(torch.zeros(6, 1176), [(1, 2, 3)])
