"""Block drafts over two tensor-parallel processes: as many drafts stand as plain torch says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import FLOAT32_LOGITS_ATOL, Oracle
from ascend_models_deepseek.testing.dspark import load_dspark
from ascend_models_deepseek.testing.dspark_oracle import DSparkOracle
from ascend_ops_core.testing.forked_programs import ForkedPrograms
from ascend_specdec.testing.block_oracle import BlockOracle, load_draft
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from .test_processes import GENERATE, TIMEOUT_S

pytestmark = pytest.mark.serve

ROOT = Path(__file__).parents[4]
CHECKPOINTS = ROOT / "tools/tiny_model/checkpoints"
DEMO = Path(__file__).parents[2] / "src/ascend_vllm_plugin/data/tiny-deepseek-v4"
COUNT, DRAFTS = 14, 5
PROMPTS = [[0], [0, *range(300, 340)], [0, *range(400, 530)]]


def qwen3() -> tuple[Any, BlockOracle]:
    target = AutoModelForCausalLM.from_pretrained(CHECKPOINTS / "qwen3", dtype=torch.float32)
    target = target.eval().requires_grad_(False)
    return target, BlockOracle(target, load_draft(CHECKPOINTS / "qwen3-dspark"))


def v4() -> tuple[Any, DSparkOracle]:
    target = Oracle(DEMO).model
    return target, DSparkOracle(target, load_dspark(target.config, CHECKPOINTS / "v4-dspark"))


def logits_of(target: Any, ids: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = target(input_ids=torch.tensor([list(ids)])).logits[0]
    return logits


@pytest.mark.parametrize(
    ("folder", "draft", "made"),
    [(CHECKPOINTS / "qwen3", "qwen3-dspark", qwen3), (DEMO, "v4-dspark", v4)],
    ids=["qwen3", "v4"],
)
def test_two_ranks_draft_as_one(
    programs: ForkedPrograms,
    tmp_path: Path,
    folder: Path,
    draft: str,
    made: Callable[[], tuple[Any, Any]],
) -> None:
    settings = {
        "model": str(folder),
        "dtype": "float32",
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "max_model_len": 256,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 80,
        "kv_cache_memory_bytes": 1 << 25,
        "logprobs_mode": "raw_logits",
        "max_logprobs": -1,
        "disable_log_stats": False,
        "tensor_parallel_size": 2,
        "speculative_config": {
            "method": "dspark",
            "model": str(CHECKPOINTS / draft),
            "num_speculative_tokens": DRAFTS,
        },
    }
    given = {
        "settings": settings,
        "prompts": PROMPTS,
        "count": COUNT,
        "acceptance": True,
    }
    arguments, result = tmp_path / "arguments.json", tmp_path / "result.safetensors"
    arguments.write_text(json.dumps(given))
    programs.run(GENERATE, [str(arguments), str(result)], tmp_path / "log", TIMEOUT_S)
    stored, (target, oracle) = load_file(result), made()
    rounds = accepted = 0
    for i, prompt in enumerate(PROMPTS):
        tokens = stored[f"tokens.{i}"].tolist()
        expected = logits_of(target, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        assert float((stored[f"logits.{i}"] - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert expected.argmax(-1).tolist() == tokens
        said = list(tokens)
        while len(said) < COUNT + DRAFTS:
            said.append(int(logits_of(target, [*prompt, *said])[-1].argmax()))
        one = oracle.speculate(prompt, said, DRAFTS)
        rounds, accepted = rounds + one.rounds, accepted + sum(one.accepted)
    assert accepted > 0
    assert stored["drafts"].tolist() == [rounds, rounds * DRAFTS, accepted]
