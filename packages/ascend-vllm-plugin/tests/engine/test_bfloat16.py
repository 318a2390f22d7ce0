"""bf16 weights and caches, teacher-forced: margins are too small there to compare tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import BFLOAT16_MEAN_RATIO, BFLOAT16_MEAN_SLACK, random_prompt
from ascend_models_kimi.testing import K3Oracle, KimiLinearOracle

from .harness import FAMILIES, Checkpoints, EnginePool, Request, Result

pytestmark = pytest.mark.engine

BF16 = torch.bfloat16
TEXT: dict[str, Any] = {"hf_overrides": {"architectures": ["KimiLinearForCausalLM"]}}


def errors(result: Result, prompt: list[int], exact: Any, rounded: Any) -> list[torch.Tensor]:
    """Differences of an engine's logits from the exact ones, and those of transformers' own."""
    assert result.prompt_logits is not None
    ids = prompt + result.tokens[:-1]
    truth = exact.logits(ids)
    logits = torch.cat([result.prompt_logits, result.logits])
    return [(one - truth).abs().flatten() for one in (logits, rounded.logits(ids))]


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("mixed", (5, 129, 370)),
        ("wide_window", (129, 700)),
        ("v3", (5, 129)),
        ("v32", (5, 129)),
        ("glm", (5, 129)),
        ("kimi_linear", (5, 129)),
        ("qwen3_next", (5, 129)),
        ("bailing", (5, 129)),
    ],
)
def test_teacher_forced_logits(
    engines: EnginePool, checkpoints: Checkpoints, name: str, lengths: tuple[int, ...]
) -> None:
    folder, (_, oracle) = checkpoints.folder(name, BF16), FAMILIES[type(checkpoints.spec(name))]
    exact, rounded = oracle(folder), oracle(folder, BF16)
    prompts = [random_prompt(n, checkpoints.spec(name).vocab_size, seed=n) for n in lengths]
    engine = engines.get(name, dtype=BF16, max_num_batched_tokens=512)
    results = engine.run([Request(prompt, 16, prompt_logits=True) for prompt in prompts])
    found = [errors(r, p, exact, rounded) for p, r in zip(prompts, results, strict=True)]
    error, yardstick = (float(torch.cat(one).mean()) for one in zip(*found, strict=True))
    assert 0 < error <= BFLOAT16_MEAN_RATIO * yardstick + BFLOAT16_MEAN_SLACK, (error, yardstick)


def test_kimi_k3(engines: EnginePool, checkpoints: Checkpoints) -> None:
    """Its definition is in float64 alone: transformers' Kimi-Linear, its kin, is the yardstick."""
    exact = K3Oracle(checkpoints.folder("k3", BF16))
    prompt = random_prompt(70, 490, seed=3)
    engine = engines.get("k3", dtype=BF16, **TEXT)
    (result,) = engine.run([Request(prompt, 6, prompt_logits=True)])
    ids, kin = prompt + result.tokens[:-1], checkpoints.folder("kimi_linear", BF16)
    assert result.prompt_logits is not None
    ours = relative_error(torch.cat([result.prompt_logits, result.logits]), exact.logits(ids))
    theirs = relative_error(
        KimiLinearOracle(kin, BF16).logits(ids), KimiLinearOracle(kin).logits(ids)
    )
    assert 0 < ours <= BFLOAT16_MEAN_RATIO * theirs + BFLOAT16_MEAN_SLACK, (ours, theirs)


def relative_error(found: torch.Tensor, truth: torch.Tensor) -> float:
    """Mean difference over the mean logit."""
    return float((found - truth).abs().mean() / truth.abs().mean())
