"""bf16 weights and caches, teacher-forced: margins are too small there to compare tokens."""

from __future__ import annotations

import pytest
import torch
from ascend_models_deepseek.testing import (
    BFLOAT16_MEAN_RATIO,
    BFLOAT16_MEAN_SLACK,
    Oracle,
    random_prompt,
)

from .harness import Checkpoints, EnginePool, Request

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("name", "lengths"), [("mixed", (5, 129, 370)), ("wide_window", (129, 700))]
)
def test_teacher_forced_logits(
    engines: EnginePool, checkpoints: Checkpoints, name: str, lengths: tuple[int, ...]
) -> None:
    folder = checkpoints.folder(name, torch.bfloat16)
    vocab = checkpoints.spec(name).vocab_size
    prompts = [random_prompt(n, vocab, seed=n) for n in lengths]
    engine = engines.get(name, dtype=torch.bfloat16, max_num_batched_tokens=512)
    results = engine.run([Request(prompt, 16, prompt_logits=True) for prompt in prompts])
    exact, rounded = Oracle(folder), Oracle(folder, torch.bfloat16)
    ours, theirs = [], []
    for prompt, result in zip(prompts, results, strict=True):
        assert result.prompt_logits is not None
        ids = prompt + result.tokens[:-1]
        truth = exact.logits(ids)
        logits = torch.cat([result.prompt_logits, result.logits])
        ours.append((logits - truth).abs().flatten())
        theirs.append((rounded.logits(ids) - truth).abs().flatten())
    error, yardstick = float(torch.cat(ours).mean()), float(torch.cat(theirs).mean())
    assert error <= BFLOAT16_MEAN_RATIO * yardstick + BFLOAT16_MEAN_SLACK, (error, yardstick)
