"""Block drafts over two tensor-parallel processes: as many drafts stand as plain torch says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import FLOAT32_LOGITS_ATOL, Oracle
from ascend_models_deepseek.testing.dspark import load_dspark
from ascend_models_deepseek.testing.dspark_oracle import DSparkOracle
from ascend_models_kimi.testing import (
    K3_SPECS,
    K3DSparkOracle,
    K3Oracle,
    TinyK3DSparkSpec,
    write_k3_checkpoint,
    write_k3_dspark,
)
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


@dataclass(frozen=True)
class Pair:
    """A target, its draft, and what plain torch says of both.

    Attributes:
        folder: of the target.
        draft: its draft's.
        logits: of the target, ``[T, vocab]`` of ids.
        count: rounds and accepted drafts of a prompt, given what the target says.
        prompts: of the requests.
        settings: further ones of the engine.
        trained: drafts are right now and then.
        tokens: of each request.
    """

    folder: Path
    draft: Path
    logits: Callable[[Sequence[int]], torch.Tensor]
    count: Callable[[Sequence[int], Sequence[int]], tuple[int, int]]
    prompts: list[list[int]] = field(default_factory=lambda: PROMPTS)
    settings: dict[str, Any] = field(default_factory=dict)
    trained: bool = True
    tokens: int = COUNT


def qwen3(scratch: Path) -> Pair:
    folder, draft = CHECKPOINTS / "qwen3", CHECKPOINTS / "qwen3-dspark"
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    target = target.eval().requires_grad_(False)
    return of_transformers(folder, draft, target, BlockOracle(target, load_draft(draft)))


def v4(scratch: Path) -> Pair:
    target, draft = Oracle(DEMO).model, CHECKPOINTS / "v4-dspark"
    oracle = DSparkOracle(target, load_dspark(target.config, draft))
    return of_transformers(DEMO, draft, target, oracle)


def of_transformers(
    folder: Path, draft: Path, target: Any, oracle: BlockOracle | DSparkOracle
) -> Pair:
    def logits(ids: Sequence[int]) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = target(input_ids=torch.tensor([list(ids)])).logits[0]
        return found

    def count(prompt: Sequence[int], said: Sequence[int]) -> tuple[int, int]:
        one = oracle.speculate(prompt, said, DRAFTS)
        return one.rounds, sum(one.accepted)

    return Pair(folder, draft, logits, count)


def k3(scratch: Path) -> Pair:
    """Kimi-K3, whose draft's weights are random."""
    folder = write_k3_checkpoint(K3_SPECS["k3"], scratch / "target")
    draft = write_k3_dspark(TinyK3DSparkSpec(K3_SPECS["k3"]), scratch / "draft")
    target = K3Oracle(folder)
    oracle = K3DSparkOracle(draft, target)

    def count(prompt: Sequence[int], said: Sequence[int]) -> tuple[int, int]:
        # What is drafted behind the last token is not verified.
        one = oracle.speculate(prompt, said[:-1], DRAFTS)
        return len(one.drafts), sum(one.accepted)

    # Few, since formulas by hand take long.
    tokens, lengths = 5, (1, 24)
    prompts = [target.clear_prompt(n, tokens + DRAFTS, seed=n) for n in lengths]
    settings = {"hf_overrides": {"architectures": ["KimiLinearForCausalLM"]}}
    return Pair(folder, draft, target.logits, count, prompts, settings, False, tokens)


@pytest.mark.parametrize("made", [qwen3, v4, k3], ids=lambda made: made.__name__)
def test_two_ranks_draft_as_one(
    programs: ForkedPrograms, tmp_path: Path, made: Callable[[Path], Pair]
) -> None:
    pair = made(tmp_path)
    settings = {
        "model": str(pair.folder),
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
            "model": str(pair.draft),
            "num_speculative_tokens": DRAFTS,
        },
        **pair.settings,
    }
    given = {
        "settings": settings,
        "prompts": pair.prompts,
        "count": pair.tokens,
        "acceptance": True,
    }
    arguments, result = tmp_path / "arguments.json", tmp_path / "result.safetensors"
    arguments.write_text(json.dumps(given))
    programs.run(GENERATE, [str(arguments), str(result)], tmp_path / "log", TIMEOUT_S)
    stored = load_file(result)
    rounds = accepted = 0
    for i, prompt in enumerate(pair.prompts):
        tokens = stored[f"tokens.{i}"].tolist()
        expected = pair.logits([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        assert float((stored[f"logits.{i}"] - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert expected.argmax(-1).tolist() == tokens
        said = list(tokens)
        while len(said) < pair.tokens + DRAFTS:
            said.append(int(pair.logits([*prompt, *said])[-1].argmax()))
        found = pair.count(prompt, said)
        rounds, accepted = rounds + found[0], accepted + found[1]
    assert accepted > 0 or not pair.trained
    assert stored["drafts"].tolist() == [rounds, rounds * DRAFTS, accepted]
