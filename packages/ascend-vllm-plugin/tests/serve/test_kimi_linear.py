"""Kimi-Linear over two tensor-parallel processes, each with half of the heads and of the states.

A process has a slice of every expert or, with expert parallelism, some experts whole.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ascend_models_kimi.testing import (
    KIMI_LINEAR_SPECS,
    KimiLinearOracle,
    write_kimi_linear_checkpoint,
)
from ascend_ops_core.testing.forked_programs import ForkedPrograms
from ascend_ops_core.testing.language_models import FLOAT32_LOGITS_ATOL

from .test_processes import COUNT, assert_summed_once, stored_by

pytestmark = pytest.mark.serve


@pytest.mark.parametrize(
    ("experts", "whole", "lengths", "count"),
    [(8, False, (1, 63, 130, 200), COUNT), (7, True, (1, 130), 12)],
    ids=["slices", "whole_experts"],
)
def test_two_ranks_with_chunks_and_prefixes(
    programs: ForkedPrograms,
    experts: int,
    whole: bool,
    lengths: tuple[int, ...],
    count: int,
    tmp_path: Path,
) -> None:
    spec = replace(KIMI_LINEAR_SPECS["kimi_linear"], num_experts=experts)
    folder = write_kimi_linear_checkpoint(spec, tmp_path / "checkpoint")
    settings = {
        "tensor_parallel_size": 2,
        "enable_expert_parallel": whole,
        "max_num_batched_tokens": 150,
        "enable_prefix_caching": True,
    }
    oracle = KimiLinearOracle(folder)
    prompts = [oracle.clear_prompt(length, count, seed=length) for length in lengths]
    stored = stored_by(programs, folder, settings, prompts, tmp_path, count)
    for i, prompt in enumerate(prompts):
        tokens, logits = stored[f"tokens.{i}"].tolist(), stored[f"logits.{i}"]
        expected = oracle.picked_logits(prompt, tokens)
        assert len(tokens) == count
        assert float((logits - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert expected.argmax(-1).tolist() == tokens
    if whole:
        assert_summed_once(stored)
