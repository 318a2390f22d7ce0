"""MiniMax-M3 over two tensor-parallel processes, which share the scores of decode steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from ascend_models_minimax.testing import M3_SPECS, M3Oracle, write_m3_checkpoint
from ascend_ops_core.testing.forked_programs import ForkedPrograms
from ascend_ops_core.testing.language_models import FLOAT32_LOGITS_ATOL

from .test_processes import COUNT, run

pytestmark = pytest.mark.serve


def test_two_ranks_with_drafts_and_chunks(programs: ForkedPrograms, tmp_path: Path) -> None:
    folder = write_m3_checkpoint(M3_SPECS["m3"], tmp_path / "checkpoint")
    settings = {
        "hf_overrides": {"architectures": ["MiniMaxM3SparseForCausalLM"]},
        "tensor_parallel_size": 2,
        "max_num_batched_tokens": 100,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
    }
    oracle = M3Oracle(folder)
    prompts = [oracle.clear_prompt(length, COUNT, seed=length) for length in (1, 15, 65, 200)]
    for prompt, (tokens, logits) in zip(
        prompts, run(programs, folder, settings, prompts, tmp_path), strict=True
    ):
        expected = oracle.picked_logits(prompt, tokens)
        assert len(tokens) == COUNT
        assert float((logits - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert expected.argmax(-1).tolist() == tokens
        if len(prompt) >= 65:
            assert oracle.selection_effect([*prompt, *tokens]) > 0.05
