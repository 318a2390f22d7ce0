"""Kimi-K3 with images, drafts and MXFP4 on the real engine, against its formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ascend_models_kimi.kimi_k3.image_processor import AscendKimiK3ImageProcessor, ImageSettings
from ascend_models_kimi.testing import K3Oracle
from ascend_models_kimi.testing.k3_processor_files import (
    BEGIN,
    CONTENT,
    END,
    MEDIA_SETTINGS,
    PAD,
    PLACEHOLDER,
    write_k3_processor_files,
)
from ascend_ops_core.testing.language_models import FLOAT32_LOGITS_ATOL, random_prompt
from ascend_vllm_plugin.planning.states import StateUse
from PIL import Image

from .harness import Checkpoints, Engine, EnginePool, Request, Result
from .test_kimi_linear import assert_as_planned

pytestmark = pytest.mark.engine

NAME = "k3"
COUNT = 8
SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": False,
    "enable_prefix_caching": True,
    "limit_mm_per_prompt": {"image": 3},
    "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
}


def picture(width: int, height: int, seed: int) -> Image.Image:
    """A picture of smooth colours, which resizing does not turn into noise."""
    generator = np.random.default_rng(seed)
    small = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def engine(engines: EnginePool, checkpoints: Checkpoints) -> Engine:
    write_k3_processor_files(checkpoints.folder(NAME))
    return engines.get(NAME, **SETTINGS)


@pytest.fixture(scope="module")
def oracle(checkpoints: Checkpoints) -> K3Oracle:
    oracle = checkpoints.oracle(NAME)
    assert isinstance(oracle, K3Oracle)
    return oracle


def expanded(
    oracle: K3Oracle, tokenizer: Any, prompt: list[int], images: list[Image.Image]
) -> tuple[list[int], dict[int, torch.Tensor]]:
    """The prompt with every image written out, and what stands in the places of its pads."""
    processor = AscendKimiK3ImageProcessor(ImageSettings.of(MEDIA_SETTINGS))
    left, ids, embedded = iter(images), [], {}
    for token in prompt:
        if token != PLACEHOLDER:
            ids.append(token)
            continue
        image = next(left)
        made = processor.preprocess([{"type": "image", "image": image}])
        _, rows, columns = made["grid_thws"][0].tolist()
        rows_of = oracle.image(made["pixel_values"], (rows, columns))
        said = tokenizer.encode(f"image {image.width}x{image.height}", add_special_tokens=False)
        ids += [BEGIN, *said, CONTENT]
        for one in rows_of:
            embedded[len(ids)] = one
            ids.append(PAD)
        ids.append(END)
    return ids, embedded


def assert_equal(
    oracle: K3Oracle, ids: list[int], embedded: dict[int, torch.Tensor], result: Result
) -> None:
    rows = oracle.logits([*ids, *result.tokens[:-1]], embedded)[len(ids) - 1 :]
    assert float((result.logits - rows).abs().max()) <= FLOAT32_LOGITS_ATOL
    assert rows.argmax(-1).tolist() == result.tokens


def words(length: int, seed: int) -> list[int]:
    return random_prompt(length, 490, seed=seed)


def test_images_of_odd_sizes_beside_text(engine: Engine, oracle: K3Oracle) -> None:
    """One batch: one image, two of other sizes, and none; chunks cut images, drafts see them."""
    images = [[picture(13, 19, 1)], [picture(90, 31, 2), picture(8, 8, 3)], []]
    prompts = [
        [*words(9, 1), PLACEHOLDER, *words(30, 2)],
        [PLACEHOLDER, *words(5, 3), PLACEHOLDER, *words(40, 4)],
        words(80, 5),
    ]
    requests = [
        Request(prompt, COUNT, at, media={"image": each} if each else {})
        for at, (prompt, each) in enumerate(zip(prompts, images, strict=True))
    ]
    before = engine.metric("vllm:spec_decode_num_accepted_tokens")
    with engine.scheduling_at_most(50):
        results = engine.run(requests)
    assert engine.metric("vllm:spec_decode_num_accepted_tokens") > before
    tokenizer = engine.llm.get_tokenizer()
    for prompt, each, result in zip(prompts, images, results, strict=True):
        assert_equal(oracle, *expanded(oracle, tokenizer, prompt, each), result)


def test_weights_and_pool_are_as_planned(engine: Engine, checkpoints: Checkpoints) -> None:
    use = StateUse(drafts=2, prefix_caching=True)
    assert_as_planned(engine, checkpoints.folder(NAME), use)


def test_the_image_decides(engine: Engine) -> None:
    prompt = [*words(9, 1), PLACEHOLDER, *words(30, 2)]
    ours = [
        engine.run([Request(prompt, 1, media={"image": [picture(24, 24, seed)]})])[0].logits
        for seed in (1, 2)
    ]
    assert float((ours[0] - ours[1]).abs().max()) > 1e-2


@pytest.mark.parametrize("width", [1, 3])
def test_drafts_change_nothing(
    engines: EnginePool, checkpoints: Checkpoints, oracle: K3Oracle, width: int
) -> None:
    """Tokens and logits are the target's, whatever is accepted; states go back to that."""
    write_k3_processor_files(checkpoints.folder(NAME))
    drafts = {"method": "mtp", "num_speculative_tokens": width}
    engine = engines.get(NAME, **SETTINGS | {"speculative_config": drafts})
    requests = [
        Request(oracle.clear_prompt(length, 16, seed=length), 16, at)
        for length, at in ((1, 0), (65, 0), (130, 2))
    ]
    names = ("num_draft_tokens", "num_accepted_tokens")
    before = [engine.metric(f"vllm:spec_decode_{name}") for name in names]
    with engine.scheduling_at_most(100):
        results = engine.run(requests)
    drafted, accepted = (
        engine.metric(f"vllm:spec_decode_{name}") - then
        for name, then in zip(names, before, strict=True)
    )
    assert 0 < accepted < drafted
    for request, result in zip(requests, results, strict=True):
        assert_equal(oracle, request.prompt, {}, result)


def test_mxfp4_experts(engines: EnginePool, checkpoints: Checkpoints) -> None:
    oracle = checkpoints.oracle("k3_mxfp4")
    assert isinstance(oracle, K3Oracle)
    write_k3_processor_files(checkpoints.folder("k3_mxfp4"))
    engine = engines.get("k3_mxfp4", skip_tokenizer_init=False)
    assert_as_planned(engine, checkpoints.folder("k3_mxfp4"), StateUse())
    requests = [Request(oracle.clear_prompt(n, 8, seed=n), 8) for n in (3, 70)]
    for request, result in zip(requests, engine.run(requests), strict=True):
        assert_equal(oracle, request.prompt, {}, result)
