"""Models with recurrent states over two ranks, each with a simulated device of its own process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_models_kimi.testing import K3Oracle
from ascend_models_kimi.testing.k3_processor_files import PLACEHOLDER, write_k3_processor_files
from ascend_ops_core.testing.forked_programs import ForkedPrograms
from ascend_ops_core.testing.language_models import FLOAT32_LOGITS_ATOL
from safetensors.torch import load_file
from transformers import AutoTokenizer

from ..harness import Checkpoints
from ..test_kimi_k3_images import expanded, picture, words
from .test_processes import GENERATE, SETTINGS, TIMEOUT_S, command

pytestmark = pytest.mark.engine_npu


def generated(
    programs: ForkedPrograms,
    where: Path,
    folder: Path,
    drafts: int,
    prompts: Sequence[list[int]],
    count: int,
    **given: Any,
) -> dict[str, torch.Tensor]:
    """What two ranks generate: prompts in chunks, decode steps in graphs, with the model's drafts.

    Args:
        programs: process that is copied.
        where: folder for arguments and results.
        folder: of the checkpoint.
        drafts: of a step.
        prompts: token ids.
        count: tokens of each.
        given: further arguments of the program; settings among them go before those here.
    """
    settings = {
        **SETTINGS,
        "model": str(folder),
        "tensor_parallel_size": 2,
        "max_num_batched_tokens": 100,
        "enable_prefix_caching": True,
        "enforce_eager": False,
        "compilation_config": {
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [2 * (1 + drafts)],
        },
        "speculative_config": {"method": "mtp", "num_speculative_tokens": drafts},
        "logprobs_mode": "raw_logits",
        "max_logprobs": -1,
        **given.pop("settings", {}),
    }
    result = where / "result.safetensors"
    told = {"settings": settings, "prompts": prompts, "count": count, **given}
    programs.run(GENERATE, command(told, result), where / "log", TIMEOUT_S)
    return load_file(result)


def assert_same(found: dict[str, torch.Tensor], number: int, expected: torch.Tensor) -> None:
    assert float((found[f"logits.{number}"] - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
    assert expected.argmax(-1).tolist() == found[f"tokens.{number}"].tolist()


def test_qwen3_next(checkpoints: Checkpoints, programs: ForkedPrograms, tmp_path: Path) -> None:
    name, count = "qwen3_next_mtp", 12
    oracle = checkpoints.oracle(name)
    prompts = [oracle.clear_prompt(length, count, seed=length) for length in (1, 5, 129)]
    found = generated(programs, tmp_path, checkpoints.folder(name), 2, prompts, count)
    for i, prompt in enumerate(prompts):
        assert_same(found, i, oracle.picked_logits(prompt, found[f"tokens.{i}"].tolist()))


def test_kimi_k3_and_an_image(
    checkpoints: Checkpoints, programs: ForkedPrograms, tmp_path: Path
) -> None:
    folder, count = write_k3_processor_files(checkpoints.folder("k3")), 8
    oracle = checkpoints.oracle("k3")
    assert isinstance(oracle, K3Oracle)
    image = picture(13, 19, 1)
    image.save(tmp_path / "image.png")
    prompts = [[*words(9, 1), PLACEHOLDER, *words(60, 2)], words(1, 3), words(80, 5)]
    found = generated(
        programs,
        tmp_path,
        folder,
        1,
        prompts,
        count,
        images=[[str(tmp_path / "image.png")], [], []],
        settings={"skip_tokenizer_init": False, "limit_mm_per_prompt": {"image": 1}},
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for i, prompt in enumerate(prompts):
        ids, embedded = expanded(oracle, tokenizer, prompt, [image] if i == 0 else [])
        tokens = found[f"tokens.{i}"].tolist()
        assert_same(found, i, oracle.logits([*ids, *tokens[:-1]], embedded)[len(ids) - 1 :])
