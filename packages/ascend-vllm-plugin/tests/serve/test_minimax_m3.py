"""MiniMax-M3 over tensor-parallel processes, which share the scores of decode steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ascend_models_minimax.testing import M3_SPECS, M3Oracle, write_m3_checkpoint
from ascend_ops_core.testing.forked_programs import ForkedPrograms
from ascend_ops_core.testing.language_models import FLOAT32_LOGITS_ATOL

from .test_processes import COUNT, run

pytestmark = pytest.mark.serve

DRAFTS = {
    "max_num_batched_tokens": 100,
    "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
}


# Of the two key-value heads each is on two of four ranks, with other query heads.
@pytest.mark.parametrize(
    ("ranks", "settings", "lengths", "count"),
    [(2, DRAFTS, (1, 15, 65, 200), COUNT), (4, {}, (17, 200), 12)],
    ids=["tp2_drafts_chunks", "tp4_replicated_heads"],
)
def test_ranks_give_the_tokens_of_transformers(
    programs: ForkedPrograms,
    ranks: int,
    settings: dict[str, Any],
    lengths: tuple[int, ...],
    count: int,
    tmp_path: Path,
) -> None:
    folder = write_m3_checkpoint(M3_SPECS["m3"], tmp_path / "checkpoint")
    given = settings | {
        "hf_overrides": {"architectures": ["MiniMaxM3SparseForCausalLM"]},
        "tensor_parallel_size": ranks,
    }
    oracle = M3Oracle(folder)
    prompts = [oracle.clear_prompt(length, count, seed=length) for length in lengths]
    for prompt, (tokens, logits) in zip(
        prompts, run(programs, folder, given, prompts, tmp_path, count), strict=True
    ):
        expected = oracle.picked_logits(prompt, tokens)
        assert len(tokens) == count
        assert float((logits - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert expected.argmax(-1).tolist() == tokens
        if len(prompt) >= 65:
            assert oracle.selection_effect([*prompt, *tokens]) > 0.05
