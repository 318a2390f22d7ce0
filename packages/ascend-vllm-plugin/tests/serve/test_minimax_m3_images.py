"""Images and video through the HTTP server: equal to transformers, and no bad one ends it."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
import torch
from ascend_models_minimax.testing import M3_SPECS, M3Oracle, write_m3_checkpoint
from ascend_models_minimax.testing.processor_files import (
    END,
    IMAGE,
    MOST_PIXELS,
    START,
    VIDEO,
    write_processor_files,
)
from ascend_vllm_plugin.cli.server import VllmServer
from PIL import Image

pytestmark = pytest.mark.serve

NAME = "m3"
COUNT = 12
START_TIMEOUT_S = 240
ARGUMENTS = [
    *("--dtype", "float32"),
    "--enforce-eager",
    *("--max-model-len", "512"),
    *("--max-num-seqs", "4"),
    *("--kv-cache-memory-bytes", str(1 << 26)),
    *("--limit-mm-per-prompt", json.dumps({"image": 2, "video": 1})),
]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> M3Oracle:
    folder = write_m3_checkpoint(M3_SPECS["m3"], tmp_path_factory.mktemp("m3"))
    return M3Oracle(write_processor_files(folder))


@pytest.fixture(scope="module")
def client(oracle: M3Oracle) -> Iterator[openai.OpenAI]:
    with VllmServer(oracle.directory, arguments=ARGUMENTS, served_name=NAME) as server:
        server.wait_ready(START_TIMEOUT_S)
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
        server.check_alive()


def picture(width: int, height: int, seed: int) -> Image.Image:
    generator = np.random.default_rng(seed)
    small = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def image_part(data: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def ask(client: openai.OpenAI, *parts: dict[str, Any]) -> Any:
    return client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}],  # type: ignore[list-item]
        max_tokens=COUNT,
        temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )


def assert_equal(oracle: M3Oracle, answer: Any, **inputs: torch.Tensor) -> list[int]:
    """The answer's tokens are transformers', for the prompt that the server made."""
    prompt = answer.prompt_token_ids
    tokens = answer.choices[0].token_ids
    assert tokens == oracle.greedy(prompt, COUNT, **inputs).tokens
    return prompt


def test_images_and_text_equal_transformers(client: openai.OpenAI, oracle: M3Oracle) -> None:
    from transformers.models.minimax_m3_vl.image_processing_minimax_m3_vl import (
        MiniMaxM3VLImageProcessor,
    )

    processor = MiniMaxM3VLImageProcessor(max_pixels=MOST_PIXELS)
    assert IMAGE not in assert_equal(oracle, ask(client))
    for sizes in ([(45, 61)], [(300, 190), (31, 90)]):
        images = [picture(w, h, i) for i, (w, h) in enumerate(sizes)]
        inputs = processor(images, return_tensors="pt")
        answer = ask(client, *(image_part(encoded(one)) for one in images))
        given = {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
        prompt = assert_equal(oracle, answer, **given)
        for grid in inputs["image_grid_thw"]:
            count = int(grid.prod()) // 4
            assert f"{[START, *[IMAGE] * count, END]}"[1:-1] in f"{prompt}"


def test_a_sequence_of_frames_equals_transformers(client: openai.OpenAI, oracle: M3Oracle) -> None:
    from transformers.models.minimax_m3_vl.video_processing_minimax_m3_vl import (
        MiniMaxM3VLVideoProcessor,
    )

    files = [encoded(picture(84, 56, seed), "JPEG") for seed in range(5)]
    data = ",".join(base64.b64encode(file).decode() for file in files)
    part = {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{data}"}}
    frames = np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files])
    made = MiniMaxM3VLVideoProcessor()([frames], return_tensors="pt", do_resize=False)
    inputs = {name: made[name] for name in ("pixel_values_videos", "video_grid_thw")}
    prompt = assert_equal(oracle, ask(client, part), **inputs)
    assert prompt.count(VIDEO) == int(made["video_grid_thw"].prod(-1).sum()) // 4


def chunk(kind: bytes, data: bytes) -> bytes:
    """One chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bad_images() -> dict[str, bytes]:
    good = encoded(picture(56, 56, 1))
    size = struct.pack(">IIBBBBB", 20000, 20000, 8, 2, 0, 0, 0)
    huge = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    return {
        "no image": b"what an image is not",
        "cut short": good[: len(good) // 2],
        "empty": b"",
        "too many pixels": huge,
        "too long": encoded(picture(2000, 4, 1)),
    }


@pytest.mark.parametrize("kind", sorted(bad_images()))
def test_a_bad_image_is_refused_and_the_server_lives_on(
    client: openai.OpenAI, oracle: M3Oracle, kind: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client, image_part(bad_images()[kind]))
    assert 400 <= caught.value.status_code < 500, caught.value.message
    assert len(caught.value.message) > 20
    assert_equal(oracle, ask(client))


def test_more_images_than_allowed_are_refused(client: openai.OpenAI, oracle: M3Oracle) -> None:
    with pytest.raises(openai.BadRequestError, match="2 image"):
        ask(client, *[image_part(encoded(picture(28, 28, 1)))] * 3)
    assert_equal(oracle, ask(client))
