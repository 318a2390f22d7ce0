"""MiniMax-M3 over tensor-parallel processes, which share the scores of decode steps.

With expert parallelism they share whole experts as well, of which an odd number cannot be halved.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ascend_models_minimax.testing import M3_SPECS, M3Oracle, write_m3_checkpoint
from ascend_ops_core.testing.forked_programs import ForkedPrograms
from ascend_ops_core.testing.language_models import FLOAT32_LOGITS_ATOL

from .test_processes import COUNT, assert_summed_once, stored_by

pytestmark = pytest.mark.serve

DRAFTS = {
    "max_num_batched_tokens": 100,
    "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
}


# Of the two key-value heads each is on two of four ranks, with other query heads.
@pytest.mark.parametrize(
    ("ranks", "experts", "settings", "lengths", "count"),
    [
        (2, 8, DRAFTS, (1, 15, 65, 200), COUNT),
        (2, 7, {**DRAFTS, "enable_expert_parallel": True}, (1, 200), 16),
        (4, 8, {}, (17, 200), 12),
    ],
    ids=["tp2_drafts_chunks", "ep2_drafts_chunks", "tp4_replicated_heads"],
)
def test_ranks_give_the_tokens_of_transformers(
    programs: ForkedPrograms,
    ranks: int,
    experts: int,
    settings: dict[str, Any],
    lengths: tuple[int, ...],
    count: int,
    tmp_path: Path,
) -> None:
    spec = replace(M3_SPECS["m3"], num_local_experts=experts)
    folder = write_m3_checkpoint(spec, tmp_path / "checkpoint")
    given = settings | {
        "hf_overrides": {"architectures": ["MiniMaxM3SparseForCausalLM"]},
        "tensor_parallel_size": ranks,
    }
    oracle = M3Oracle(folder)
    prompts = [oracle.clear_prompt(length, count, seed=length) for length in lengths]
    stored = stored_by(programs, folder, given, prompts, tmp_path, count)
    for i, prompt in enumerate(prompts):
        tokens, logits = stored[f"tokens.{i}"].tolist(), stored[f"logits.{i}"]
        expected = oracle.picked_logits(prompt, tokens)
        assert len(tokens) == count
        assert float((logits - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert expected.argmax(-1).tolist() == tokens
        if len(prompt) >= 65:
            assert oracle.selection_effect([*prompt, *tokens]) > 0.05
    if settings.get("enable_expert_parallel"):
        assert_summed_once(stored)
