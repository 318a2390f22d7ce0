"""A trained Qwen3 with its block drafts: engines, prompts, and what plain torch says of both."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from ascend_specdec.testing.block_oracle import BlockOracle, load_draft, random_draft, write_draft
from ascend_specdec.testing.dense_block_draft import DenseDraftConfig

from .harness import Engine, Request, Result
from .speculation import check_every_width

CHECKPOINTS = Path(__file__).parents[4] / "tools" / "tiny_model" / "checkpoints"
TARGET = CHECKPOINTS / "qwen3"
VOCABULARY = 1024
_COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")


def draft_folder(kind: str, scratch: Path) -> Path:
    """The trained draft of a kind; one with random weights where none was trained."""
    trained = CHECKPOINTS / f"qwen3-{kind}"
    if trained.exists():
        return trained
    shape = DenseDraftConfig(
        kind,
        (0, 2, 4),
        hidden_size=128,
        target_hidden_size=128,
        head_dim=32,
        vocab_size=VOCABULARY,
        mask_token=1,
    )
    return write_draft(random_draft(shape, seed=1), scratch / kind)


def start(kind: str, drafts: int, scratch: Path, **settings: Any) -> Engine:
    """An engine of the target with a draft; ``speculative`` holds more of its config."""
    speculative = {
        "model": str(draft_folder(kind, scratch)),
        "method": "dspark" if kind == "dspark" else "dflash",
        "num_speculative_tokens": drafts,
        **settings.pop("speculative", {}),
    }
    return Engine(TARGET, speculative_config=speculative, **({"max_model_len": 256} | settings))


def check_widths(kind: str, scratch: Path) -> None:
    """Greedy tokens are the target's with one draft a step up to seven, as many right as said."""
    engine = start(kind, 7, scratch)
    try:
        requests = [Request(story(1, 21), 8), Request(story(45, 22), 8)]
        check_every_width(engine, requests, [said(one.prompt, one.count) for one in requests])
        assert_accepted_as_the_oracle(engine, kind, scratch, 7, requests)
    finally:
        engine.close()


@cache
def target() -> Any:
    """transformers' model of the target, in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    return model.eval().requires_grad_(False)


@cache
def _said(prompt: tuple[int, ...], count: int) -> list[int]:
    out = _generated(list(prompt), count, do_sample=False)
    return out[len(prompt) :]


def said(prompt: Sequence[int], count: int) -> list[int]:
    """What the target says, greedily."""
    return _said(tuple(prompt), count)


@cache
def _told(length: int, seed: int) -> tuple[int, ...]:
    torch.manual_seed(seed)
    return tuple(_generated([0], length - 1, do_sample=True))


def _generated(prompt: list[int], count: int, do_sample: bool) -> list[int]:
    """A prompt and what follows it."""
    if not count:
        return prompt
    ids = torch.tensor([prompt])
    out = target().generate(
        ids,
        # transformers would hide the ends of earlier stories, taking them for padding.
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=do_sample,
        eos_token_id=None,
    )
    return [int(token) for token in out[0]]


def story(length: int, seed: int) -> list[int]:
    """A prompt of the target's own telling, of which drafts have learned."""
    return list(_told(length, seed))


def counters(engine: Engine) -> list[float]:
    """Rounds, drafted and accepted tokens so far."""
    return [engine.metric(f"vllm:spec_decode_{name}") for name in _COUNTERS]


def assert_as_without_drafts(requests: Sequence[Request], results: Sequence[Result]) -> None:
    """Every greedy request has the tokens of transformers."""
    for request, result in zip(requests, results, strict=True):
        expected = said(request.prompt, request.count)
        assert result.tokens == expected, (len(request.prompt), result.tokens, expected)


def assert_accepted_as_the_oracle(
    engine: Engine, kind: str, scratch: Path, drafts: int, requests: Sequence[Request]
) -> float:
    """Run requests, and compare tokens, rounds and accepted drafts; returns accepted a round."""
    before = counters(engine)
    results = engine.run(requests)
    counted = [b - a for a, b in zip(before, counters(engine), strict=True)]
    assert_as_without_drafts(requests, results)
    oracle = BlockOracle(target(), load_draft(draft_folder(kind, scratch)))
    found = [
        oracle.speculate(one.prompt, said(one.prompt, one.count + drafts), drafts)
        for one in requests
    ]
    rounds = sum(one.rounds for one in found)
    accepted = sum(sum(one.accepted) for one in found)
    assert counted == [rounds, rounds * drafts, accepted]
    return accepted / rounds
