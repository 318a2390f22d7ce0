"""Models with recurrent states over two tensor-parallel processes, each with half of the heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ascend_models_kimi.testing import (
    K3_SPECS,
    KIMI_LINEAR_SPECS,
    K3Oracle,
    KimiLinearOracle,
    write_k3_checkpoint,
    write_kimi_linear_checkpoint,
)
from ascend_models_kimi.testing.k3_processor_files import write_k3_processor_files
from ascend_ops_core.testing.forked_programs import ForkedPrograms
from ascend_ops_core.testing.language_models import FLOAT32_LOGITS_ATOL
from ascend_vllm_plugin.testing import (
    BAILING_SPECS,
    QWEN3_NEXT_SPECS,
    BailingOracle,
    Qwen3NextOracle,
    write_bailing_checkpoint,
    write_qwen3_next_checkpoint,
)

from .test_processes import assert_summed_once, stored_by

pytestmark = pytest.mark.serve


@dataclass(frozen=True)
class Case:
    """A model, what compares it, and how it is served.

    Attributes:
        write: writes the checkpoint of ``spec``.
        oracle: runs it.
        lengths: of the prompts, each with ``count`` tokens behind it.
        drafts: of a step, by the model's own draft layer.
        whole_experts: a rank has some experts whole, instead of a slice of each.
    """

    spec: Any
    write: Any
    oracle: Any
    lengths: tuple[int, ...]
    count: int
    drafts: int = 0
    whole_experts: bool = False


CASES = {
    "kimi_linear": Case(
        KIMI_LINEAR_SPECS["kimi_linear"],
        write_kimi_linear_checkpoint,
        KimiLinearOracle,
        (1, 63, 130, 200),
        64,
    ),
    # Seven experts over two ranks.
    "kimi_linear_experts": Case(
        replace(KIMI_LINEAR_SPECS["kimi_linear"], num_experts=7),
        write_kimi_linear_checkpoint,
        KimiLinearOracle,
        (1, 130),
        12,
        whole_experts=True,
    ),
    "qwen3_next": Case(
        QWEN3_NEXT_SPECS["qwen3_next_mtp"],
        write_qwen3_next_checkpoint,
        Qwen3NextOracle,
        (1, 63, 130, 200),
        40,
        drafts=2,
    ),
    # Two heads of each kind on a rank, and a group of the norm.
    "bailing": Case(
        BAILING_SPECS["bailing"],
        write_bailing_checkpoint,
        BailingOracle,
        (1, 200),
        8,
    ),
    # Three heads of each kind on a rank.
    "k3": Case(
        replace(K3_SPECS["k3"], num_attention_heads=6, kda_heads=6),
        write_k3_checkpoint,
        K3Oracle,
        (1, 63, 160),
        16,
        drafts=1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_with_chunks_and_prefixes(
    programs: ForkedPrograms, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    case.write(case.spec, folder)
    settings: dict[str, Any] = {
        "tensor_parallel_size": 2,
        "enable_expert_parallel": case.whole_experts,
        "max_num_batched_tokens": 150,
        "enable_prefix_caching": True,
    }
    if case.drafts:
        settings["speculative_config"] = {
            "method": "mtp",
            "num_speculative_tokens": case.drafts,
        }
    if name == "k3":
        write_k3_processor_files(folder)
        settings["skip_tokenizer_init"] = False
    oracle = case.oracle(folder)
    prompts = [oracle.clear_prompt(length, case.count, seed=length) for length in case.lengths]
    stored = stored_by(programs, folder, settings, prompts, tmp_path, case.count)
    for i, prompt in enumerate(prompts):
        tokens, logits = stored[f"tokens.{i}"].tolist(), stored[f"logits.{i}"]
        expected = oracle.picked_logits(prompt, tokens)
        assert len(tokens) == case.count
        assert float((logits - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert expected.argmax(-1).tolist() == tokens
    if case.whole_experts:
        assert_summed_once(stored)
