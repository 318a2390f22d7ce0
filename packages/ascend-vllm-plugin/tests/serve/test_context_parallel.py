"""Two processes that split the heads and share every context give what one process gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ascend_models_deepseek.testing import FLOAT32_LOGITS_ATOL, Oracle, random_prompt
from ascend_models_deepseek.testing.oracle_v3 import V3Oracle
from ascend_models_deepseek.testing.oracle_v32 import V32Oracle
from ascend_models_deepseek.testing.tiny_v3 import V3_SPECS, write_v3_checkpoint
from ascend_models_deepseek.testing.tiny_v32 import V32_SPECS, write_v32_checkpoint
from ascend_ops_core.testing.forked_programs import ForkedPrograms

from .test_processes import run

pytestmark = pytest.mark.serve

# One token, which lies on one rank alone; lengths around a block of both ranks; one whose last
# chunk is short, so that both ways of attending to shared contexts are taken.
LENGTHS = (1, 63, 64, 129, 201)
COUNT = 24


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("v3", {"cp_kv_cache_interleave_size": 16}),
        ("v32", {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}),
    ],
)
def test_tokens_are_those_of_transformers(
    name: str, settings: dict[str, Any], programs: ForkedPrograms, tmp_path: Path
) -> None:
    folder, oracle = made(name, tmp_path / "checkpoint")
    settings = settings | {
        "tensor_parallel_size": 2,
        "decode_context_parallel_size": 2,
        "block_size": 32,
        "max_num_batched_tokens": 100,
    }
    prompts = [prompt(oracle, length) for length in LENGTHS]
    for given, (tokens, logits) in zip(
        prompts, run(programs, folder, settings, prompts, tmp_path, COUNT), strict=True
    ):
        expected = oracle.picked_logits(given, tokens)
        assert len(tokens) == COUNT
        assert float((logits - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert expected.argmax(-1).tolist() == tokens
        if isinstance(oracle, V32Oracle):
            assert oracle.selection_effect([*given, *tokens]) > 0.05


def test_latents_of_eight_bits_are_those_of_one_process(
    programs: ForkedPrograms, tmp_path: Path
) -> None:
    """A row's scales are its own, so that ranks hold what one process holds.

    Sums over heads differ in their order, which moves a value to the code beside it now and then.
    """
    folder = write_v32_checkpoint(V32_SPECS["v32_wide"], tmp_path / "checkpoint")
    prompts = [random_prompt(length, 512, seed=length) for length in (1, 63, 129)]
    settings = {"max_num_batched_tokens": 100, "block_size": 32}
    shared = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}
    eight: dict[str, Any] = {"additional_config": {"latent_cache_dtype": "int8"}}
    found = []
    for name, given in (("one", eight), ("two", eight | shared)):
        place = tmp_path / name
        place.mkdir()
        found.append(run(programs, folder, settings | given, prompts, place, 6))
    oracle = V32Oracle(folder)
    for prompt, (tokens, one), (others, two) in zip(prompts, *found, strict=True):
        assert tokens == others
        apart = float((one - two).abs().max())
        moved = float((one - oracle.picked_logits(prompt, tokens)).abs().mean())
        print(f"{len(prompt)} tokens: ranks {apart:.1e}, eight bits {moved:.1e}")
        assert apart < moved


def made(name: str, folder: Path) -> tuple[Path, Oracle]:
    """Write a checkpoint and load it in transformers."""
    if name == "v3":
        write_v3_checkpoint(V3_SPECS[name], folder)
        return folder, V3Oracle(folder)
    write_v32_checkpoint(V32_SPECS[name], folder)
    return folder, V32Oracle(folder)


def prompt(oracle: Oracle, length: int) -> list[int]:
    """A prompt whose selections rounding does not decide."""
    if isinstance(oracle, V32Oracle):
        return oracle.clear_prompt(length, COUNT, seed=length)
    return random_prompt(length, 512, seed=length)
