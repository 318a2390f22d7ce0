"""Kimi-Linear over two tensor-parallel processes, each with half of the heads and of the states."""

from __future__ import annotations

from pathlib import Path

import pytest
from ascend_models_kimi.testing import (
    KIMI_LINEAR_SPECS,
    KimiLinearOracle,
    write_kimi_linear_checkpoint,
)
from ascend_ops_core.testing.forked_programs import ForkedPrograms
from ascend_ops_core.testing.language_models import FLOAT32_LOGITS_ATOL

from .test_processes import COUNT, run

pytestmark = pytest.mark.serve


def test_two_ranks_with_chunks_and_prefixes(programs: ForkedPrograms, tmp_path: Path) -> None:
    folder = write_kimi_linear_checkpoint(KIMI_LINEAR_SPECS["kimi_linear"], tmp_path / "checkpoint")
    settings = {
        "tensor_parallel_size": 2,
        "max_num_batched_tokens": 150,
        "enable_prefix_caching": True,
    }
    oracle = KimiLinearOracle(folder)
    prompts = [oracle.clear_prompt(length, COUNT, seed=length) for length in (1, 63, 130, 200)]
    for prompt, (tokens, logits) in zip(
        prompts, run(programs, folder, settings, prompts, tmp_path), strict=True
    ):
        expected = oracle.picked_logits(prompt, tokens)
        assert len(tokens) == COUNT
        assert float((logits - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert expected.argmax(-1).tolist() == tokens
