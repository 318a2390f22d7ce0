"""Kimi-K3's vision tower against its formulas, and its image processor against pixels by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from ascend_models_kimi.kimi_k3.image_processor import AscendKimiK3ImageProcessor, ImageSettings
from ascend_models_kimi.kimi_k3.vision.config import VisionSpec
from ascend_models_kimi.kimi_k3.vision.tower import KimiK3VisionModel
from ascend_models_kimi.kimi_k3.vision.weights import vision_rules
from ascend_models_kimi.testing.oracle_k3_vision import image_embeddings
from ascend_models_kimi.testing.tiny_k3 import K3_SPECS, k3_tensors
from ascend_ops_core import InvalidInputError
from ascend_ops_core.checkpoint.table import WeightTable
from PIL import Image

SPEC = K3_SPECS["k3"]
CONFIG = SPEC.published_config()
SETTINGS = {
    "patch_size": 4,
    "merge_kernel_size": [2, 2],
    "in_patch_limit": 60,
    "patch_limit_on_one_side": 12,
    "fixed_output_tokens": None,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.5, 0.2, 0.1],
}


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    return k3_tensors(SPEC)


@pytest.fixture(scope="module")
def tower(tensors: dict[str, torch.Tensor]) -> KimiK3VisionModel:
    model = KimiK3VisionModel(VisionSpec.from_config(CONFIG), torch.float32)
    # A parameter that no tensor fills shows.
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    WeightTable(dict(vision_rules(model.spec, "")), ("language_model.",)).load(
        model, tensors.items()
    )
    return model


def by_formulas(
    tensors: dict[str, torch.Tensor], pixels: torch.Tensor, grid: tuple[int, int]
) -> torch.Tensor:
    wide = {name: tensor.double() for name, tensor in tensors.items()}
    return image_embeddings(wide, CONFIG["vision_config"], pixels, grid).float()


def patches(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 4, 4, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize(
    "grids",
    [[(2, 2)], [(6, 6)], [(4, 10), (2, 2), (8, 2)]],
    ids=["one window", "size of the table", "images of odd sizes"],
)
def test_embeddings_equal_the_formulas(
    tensors: dict[str, torch.Tensor], tower: KimiK3VisionModel, grids: list[tuple[int, int]]
) -> None:
    pixels = patches(sum(r * c for r, c in grids))
    ours = tower(pixels, grids)
    parts = pixels.split([r * c for r, c in grids])
    for one, part, grid in zip(ours, parts, grids, strict=True):
        expected = by_formulas(tensors, part, grid)
        torch.testing.assert_close(one, expected, atol=2e-5, rtol=1e-5)


def test_an_image_of_16_bits(tensors: dict[str, torch.Tensor], tower: KimiK3VisionModel) -> None:
    """The norms' epsilon is float32's in every dtype, as torch's is."""
    rounded = {name: tensor.bfloat16().float() for name, tensor in tensors.items()}
    half = KimiK3VisionModel(tower.spec, torch.bfloat16)
    WeightTable(dict(vision_rules(half.spec, "")), ("language_model.",)).load(half, rounded.items())
    pixels = patches(24).bfloat16()
    expected = by_formulas(rounded, pixels.float(), (4, 6))
    ours = half(pixels, [(4, 6)])[0]
    assert ours.dtype == torch.bfloat16
    assert float((ours.float() - expected).norm() / expected.norm()) < 0.03
    small = torch.full((1, 8), 1e-3, dtype=torch.bfloat16)
    assert torch.nn.functional.rms_norm(small, (8,)).float().min() > 0.9


def test_output_rotation(tensors: dict[str, torch.Tensor], tower: KimiK3VisionModel) -> None:
    turned, _ = torch.linalg.qr(torch.randn(96, 96, generator=torch.Generator().manual_seed(1)))
    pixels = patches(8)
    expected = by_formulas(tensors, pixels, (2, 4)) @ turned
    assert tower.projector.rotation is None
    tower.projector.rotate_output(turned)
    try:
        torch.testing.assert_close(tower(pixels, [(2, 4)])[0], expected, atol=2e-5, rtol=1e-5)
    finally:
        tower.projector.rotation = None
    with pytest.raises(InvalidInputError, match=r"rotation of shape \[96, 95\]"):
        tower.projector.rotate_output(turned[:, 1:])


def test_patches_that_do_not_fit_are_refused(tower: KimiK3VisionModel) -> None:
    with pytest.raises(InvalidInputError, match=r"patches of shape \[3, 3, 4, 4\]"):
        tower(patches(3), [(2, 2)])
    with pytest.raises(InvalidInputError, match=r"patches of shape \[4, 3, 4, 3\]"):
        tower(patches(4)[..., :3], [(2, 2)])
    with pytest.raises(InvalidInputError, match="windows of 2 x 2"):
        tower(patches(6), [(2, 3)])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("norm_type", "layernorm", "norm_type='layernorm'.*rmsnorm"),
        ("merge_kernel_size", [1, 2], r"merge_kernel_size=\(1, 2\)"),
        ("qkv_hidden_size", 44, "qkv_hidden_size=44.*by fours"),
        ("vt_num_hidden_layers", 0, "vt_num_hidden_layers"),
    ],
)
def test_configs_that_are_not_served(key: str, value: Any, message: str) -> None:
    config = json.loads(json.dumps(CONFIG))
    config["vision_config"][key] = value
    with pytest.raises(InvalidInputError, match=message):
        VisionSpec.from_config(config)
    with pytest.raises(InvalidInputError, match="without vision_config"):
        VisionSpec.from_config({name: CONFIG[name] for name in ("text_config",)})


def picture(width: int, height: int) -> Image.Image:
    generator = np.random.default_rng(width)
    return Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_patches_of_images_by_hand() -> None:
    """Whole images, one that is filled up, and one that is shrunk."""
    processor = AscendKimiK3ImageProcessor(ImageSettings.of({"media_proc_cfg": SETTINGS}))
    images = [picture(16, 8), picture(13, 19), picture(400, 90)]
    made = processor.preprocess([{"type": "image", "image": one} for one in images])
    grids = made["grid_thws"].tolist()
    # The last: longest side 48 pixels, so a factor 0.12, 48 by 10, filled up to 48 by 16.
    assert grids == [[1, 2, 4], [1, 6, 4], [1, 4, 12]]
    assert [processor.settings.tokens(*one.size) for one in images] == [2, 6, 12]
    parts = made["pixel_values"].split([math.prod(grid) for grid in grids])
    shrunk = images[2].resize((48, 10), resample=Image.Resampling.BICUBIC)
    for part, (_, rows, columns), image in zip(
        parts, grids, (images[0], images[1], shrunk), strict=True
    ):
        source = np.asarray(image)
        for patch, values in enumerate(part):
            top, left = patch // columns * 4, patch % columns * 4
            for c, (mean, std) in enumerate(
                zip(SETTINGS["image_mean"], SETTINGS["image_std"], strict=True)  # type: ignore[arg-type]
            ):
                for y in range(4):
                    for x in range(4):
                        inside = top + y < source.shape[0] and left + x < source.shape[1]
                        value = source[top + y, left + x, c] / 255 if inside else 0.0
                        assert float(values[c, y, x]) == pytest.approx(
                            (value - mean) / std, abs=1e-5
                        )
        assert rows % 2 == columns % 2 == 0


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (3000, 2), (777, 333), (48, 48), (49, 47)])
def test_limits_hold_for_every_size(size: tuple[int, int]) -> None:
    settings = ImageSettings.of(SETTINGS)
    rows, columns = settings.grid(*size)
    assert 2 <= rows <= 12
    assert 2 <= columns <= 12
    width, height = settings.resized(*size)
    assert max(1.0, width // 4) * max(1.0, height // 4) <= 60
    assert processor_patches(settings, size) == rows * columns


def test_no_image_has_more_tokens_than_the_one_that_vllm_reserves_for() -> None:
    from vllm.models.kimi_k3.common.mm_preprocess import KimiK3ProcessingInfo

    processor = AscendKimiK3ImageProcessor(ImageSettings.of(SETTINGS))
    largest = KimiK3ProcessingInfo.get_max_image_size(**processor.media_proc_cfg)
    most = processor.settings.tokens(*largest)
    sizes = [(w, h) for w in range(1, 70) for h in range(1, 70)]
    assert max(processor.settings.tokens(*size) for size in sizes) == most == 25


def processor_patches(settings: ImageSettings, size: tuple[int, int]) -> int:
    made = AscendKimiK3ImageProcessor(settings).preprocess(
        [{"type": "image", "image": picture(*size)}]
    )
    return len(made["pixel_values"])


def test_settings_that_are_wrong() -> None:
    for changes, message in (
        ({"in_patch_limit": 0}, "in_patch_limit"),
        ({"patch_limit_on_one_side": 11}, "whole windows"),
        ({"fixed_output_tokens": 64}, "fixed_output_tokens=64"),
        ({"image_std": [0.5, 0.0, 0.5]}, "no deviation is 0"),
        ({"image_mean": [0.5]}, "three numbers"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            ImageSettings.of(SETTINGS | changes)
    with pytest.raises(InvalidInputError, match=r"preprocessor_config\.json"):
        AscendKimiK3ImageProcessor.of_checkpoint("folder", None)
    read = AscendKimiK3ImageProcessor.of_checkpoint("folder", {"media_proc_cfg": SETTINGS})
    assert read.settings == ImageSettings.of(SETTINGS)
