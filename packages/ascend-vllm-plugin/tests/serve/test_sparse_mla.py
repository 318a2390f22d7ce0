"""GLM-5 over two tensor-parallel processes: every rank selects alike, with its own heads."""

from __future__ import annotations

from pathlib import Path

import pytest
from ascend_models_deepseek.testing import FLOAT32_LOGITS_ATOL
from ascend_models_deepseek.testing.oracle_v32 import V32Oracle
from ascend_models_deepseek.testing.tiny_v32 import V32_SPECS, write_v32_checkpoint
from ascend_ops_core.testing.forked_programs import ForkedPrograms

from .test_processes import COUNT, run

pytestmark = pytest.mark.serve


def test_two_ranks_with_drafts_and_chunks(programs: ForkedPrograms, tmp_path: Path) -> None:
    folder = write_v32_checkpoint(V32_SPECS["glm"], tmp_path / "checkpoint")
    settings = {
        "tensor_parallel_size": 2,
        "max_num_batched_tokens": 100,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
    }
    oracle = V32Oracle(folder)
    prompts = [oracle.clear_prompt(length, COUNT, seed=length) for length in (1, 21, 129, 200)]
    for prompt, (tokens, logits) in zip(
        prompts, run(programs, folder, settings, prompts, tmp_path), strict=True
    ):
        expected = oracle.picked_logits(prompt, tokens)
        assert len(tokens) == COUNT
        assert float((logits - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert expected.argmax(-1).tolist() == tokens
        assert oracle.selection_effect([*prompt, *tokens]) > 0.05
