"""MiniMax-M3 with images and video on the real engine, against transformers and its processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ascend_models_minimax.testing import M3Oracle
from ascend_models_minimax.testing.processor_files import (
    END,
    IMAGE,
    MOST_PIXELS,
    START,
    VIDEO,
    write_processor_files,
)
from ascend_ops_core.testing.language_models import FLOAT32_LOGITS_ATOL, random_prompt
from PIL import Image

from .harness import Checkpoints, Engine, EnginePool, Request, Result

pytestmark = pytest.mark.engine

NAME = "m3"
COUNT = 8


def picture(width: int, height: int, seed: int) -> Image.Image:
    """A picture of smooth colours, which resizing does not turn into noise."""
    generator = np.random.default_rng(seed)
    small = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def film(frames: int, width: int, height: int, seed: int) -> np.ndarray:
    """Frames `[T, H, W, 3]`."""
    return np.stack([np.asarray(picture(width, height, seed + i)) for i in range(frames)])


SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": False,
    "enable_prefix_caching": True,
    "limit_mm_per_prompt": {"image": 3, "video": 1},
}


@pytest.fixture
def engine(engines: EnginePool, checkpoints: Checkpoints) -> Engine:
    write_processor_files(checkpoints.folder(NAME))
    return engines.get(NAME, **SETTINGS)


@pytest.fixture(scope="module")
def oracle(checkpoints: Checkpoints) -> M3Oracle:
    oracle = checkpoints.oracle(NAME)
    assert isinstance(oracle, M3Oracle)
    return oracle


def seen_by_transformers(
    prompt: list[int], images: list[Image.Image], video: np.ndarray | None = None
) -> tuple[list[int], dict[str, torch.Tensor]]:
    """The prompt with every placeholder repeated, and the inputs of transformers' processors."""
    from transformers.models.minimax_m3_vl.image_processing_minimax_m3_vl import (
        MiniMaxM3VLImageProcessor,
    )
    from transformers.models.minimax_m3_vl.video_processing_minimax_m3_vl import (
        MiniMaxM3VLVideoProcessor,
    )

    inputs: dict[str, Any] = {}
    counts, frames, per_frame = iter(()), 0, 0
    if images:
        made = MiniMaxM3VLImageProcessor(max_pixels=MOST_PIXELS)(images, return_tensors="pt")
        inputs |= {name: made[name] for name in ("pixel_values", "image_grid_thw")}
        counts = iter((made["image_grid_thw"].prod(-1) // 4).tolist())
    if video is not None:
        made = MiniMaxM3VLVideoProcessor()([video], return_tensors="pt", do_resize=False)
        inputs |= {name: made[name] for name in ("pixel_values_videos", "video_grid_thw")}
        grid = made["video_grid_thw"]
        frames, per_frame = int(grid[:, 0].sum()), int(grid[0, 1:].prod()) // 4
    expanded: list[int] = []
    for token in prompt:
        if token == IMAGE:
            expanded += [START, *[IMAGE] * next(counts), END]
        elif token == VIDEO:
            for _ in range(frames):
                expanded += [START, *[VIDEO] * per_frame, END]
        else:
            expanded.append(token)
    return expanded, inputs


def assert_equal(oracle: M3Oracle, expanded: list[int], inputs: Any, result: Result) -> None:
    expected = oracle.picked_logits(expanded, result.tokens, **inputs)
    assert float((result.logits - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
    assert expected.argmax(-1).tolist() == result.tokens


def words(length: int, seed: int) -> list[int]:
    return random_prompt(length, 490, seed=seed)


def test_images_of_odd_sizes_beside_text(engine: Engine, oracle: M3Oracle) -> None:
    """One batch: one image, three images of other sizes, and none; in chunks that cut images."""
    sizes = [[(45, 61)], [(90, 31), (300, 280), (28, 28)], []]
    images = [[picture(w, h, i) for i, (w, h) in enumerate(each)] for each in sizes]
    prompts = [
        [*words(9, 1), IMAGE, *words(30, 2)],
        [IMAGE, *words(5, 3), IMAGE, IMAGE, *words(40, 4)],
        words(80, 5),
    ]
    requests = [
        Request(prompt, COUNT, at, media={"image": each} if each else {})
        for at, (prompt, each) in enumerate(zip(prompts, images, strict=True))
    ]
    with engine.scheduling_at_most(50):
        results = engine.run(requests)
    for prompt, each, result in zip(prompts, images, results, strict=True):
        assert_equal(oracle, *seen_by_transformers(prompt, each), result)


def test_the_image_decides(engine: Engine) -> None:
    prompt = [*words(9, 1), IMAGE, *words(30, 2)]
    ours = [
        engine.run([Request(prompt, 1, media={"image": [picture(56, 56, seed)]})])[0].logits
        for seed in (1, 2)
    ]
    assert float((ours[0] - ours[1]).abs().max()) > 1e-2


def test_a_video_in_several_segments(engine: Engine, oracle: M3Oracle) -> None:
    """Eleven frames are six temporal patches, which attend in segments of four and two."""
    frames = film(11, 84, 56, seed=7)
    prompt = [*words(4, 8), VIDEO, *words(20, 9)]
    request = Request(prompt, COUNT, media={"video": [(frames, {"total_num_frames": 11})]})
    result = engine.run([request])[0]
    assert_equal(oracle, *seen_by_transformers(prompt, [], frames), result)


def test_an_image_from_the_prefix_cache(engine: Engine, oracle: M3Oracle) -> None:
    image = picture(112, 84, 4)
    prompt = [*words(40, 11), IMAGE, *words(60, 12)]
    requests = [Request(prompt, COUNT, media={"image": [image]})] * 2
    results = [engine.run([request])[0] for request in requests]
    assert results[1].cached > results[0].cached == 0
    other = Request(prompt, COUNT, media={"image": [picture(112, 84, 5)]})
    results.append(engine.run([other])[0])
    # The blocks in front of the image are the same, those behind it are not.
    assert 0 < results[2].cached < results[1].cached
    for result, one in zip(results, (image, image, picture(112, 84, 5)), strict=True):
        assert_equal(oracle, *seen_by_transformers(prompt, [one]), result)


def test_drafts_see_images_too(
    engines: EnginePool, checkpoints: Checkpoints, oracle: M3Oracle
) -> None:
    write_processor_files(checkpoints.folder(NAME))
    drafts = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}
    engine = engines.get(NAME, **SETTINGS, **drafts)
    image = picture(90, 61, 6)
    prompts = [[*words(9, 21), IMAGE, *words(70, 22)], words(30, 23)]
    requests = [Request(prompts[0], 16, media={"image": [image]}), Request(prompts[1], 16, 1)]
    before = engine.metric("vllm:spec_decode_num_accepted_tokens")
    results = engine.run(requests)
    assert engine.metric("vllm:spec_decode_num_accepted_tokens") > before
    for prompt, images, result in zip(prompts, ([image], []), results, strict=True):
        assert_equal(oracle, *seen_by_transformers(prompt, images), result)
