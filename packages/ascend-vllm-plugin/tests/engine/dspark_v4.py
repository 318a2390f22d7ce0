"""The demo's DeepSeek-V4 with its DSpark draft: engines, prompts, and what plain torch says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from ascend_models_deepseek.testing import FLOAT32_LOGITS_ATOL, Oracle
from ascend_models_deepseek.testing.dspark import load_dspark
from ascend_models_deepseek.testing.dspark_oracle import DSparkOracle
from ascend_vllm_plugin.planning.drafts import DraftTarget, Speculation
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.v4_draft import plan_v4_draft
from safetensors.torch import load_file, save_file

from .harness import Engine, Request, Result
from .speculation import drafting
from .trained import CHECKPOINTS, story_prompt

TARGET = Path(__file__).parents[2] / "src/ascend_vllm_plugin/data/tiny-deepseek-v4"
DRAFT = CHECKPOINTS / "v4-dspark"
BLOCK = 5
"""Drafts of a block in training."""

_COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")


def start(drafts: int, joined: Path | None = None, **settings: Any) -> Engine:
    """An engine of the target with its draft.

    Args:
        drafts: of a step.
        joined: a checkpoint of both, see :func:`join`; None for one of each.
        settings: of the engine; ``speculative`` holds more of the draft's config.
    """
    speculative = {
        "method": "dspark",
        "num_speculative_tokens": drafts,
        **settings.pop("speculative", {}),
    }
    if joined is None:
        speculative["model"] = str(DRAFT)
    given = {"max_model_len": 384} | settings
    return Engine(joined or TARGET, speculative_config=speculative, **given)


def join(folder: Path) -> Path:
    """Write a checkpoint of the target with the draft in the place of its MTP layer."""
    tensors = load_file(TARGET / "model.safetensors")
    kept = {name: one for name, one in tensors.items() if not name.startswith("mtp.")}
    draft = load_file(DRAFT / "model.safetensors")
    save_file(kept | draft, folder / "model.safetensors", {"format": "pt"})
    shutil.copy(DRAFT / "config.json", folder)
    return folder


@cache
def oracle() -> DSparkOracle:
    """The target of transformers with the draft in plain torch, in float32."""
    target = Oracle(TARGET).model
    return DSparkOracle(target, load_dspark(target.config, DRAFT))


@cache
def _said(prompt: tuple[int, ...], count: int) -> list[int]:
    return oracle().say(prompt, count)


def said(prompt: Sequence[int], count: int) -> list[int]:
    """What the target says, greedily."""
    return _said(tuple(prompt), count)


def story(length: int, seed: int) -> list[int]:
    """A piece of stories that neither was trained on."""
    return story_prompt(length, seed)


def assert_as_without_drafts(requests: Sequence[Request], results: Sequence[Result]) -> None:
    """Every greedy request has the tokens of transformers."""
    for request, result in zip(requests, results, strict=True):
        expected = said(request.prompt, request.count)
        assert result.tokens == expected, (len(request.prompt), result.tokens, expected)


def assert_accepted_as_the_oracle(
    engine: Engine, drafts: int, requests: Sequence[Request]
) -> float:
    """Run requests, and compare tokens, rounds and accepted drafts; returns accepted a round."""
    before = _counted(engine)
    results = engine.run(requests)
    counted = [b - a for a, b in zip(before, _counted(engine), strict=True)]
    assert_as_without_drafts(requests, results)
    found = [
        oracle().speculate(one.prompt, said(one.prompt, one.count + drafts), drafts)
        for one in requests
    ]
    rounds = sum(one.rounds for one in found)
    accepted = sum(sum(one.accepted) for one in found)
    assert counted == [rounds, rounds * drafts, accepted]
    return accepted / rounds


def assert_every_number_of_drafts(engine: Engine, most: int) -> None:
    """One a step, two, up to those of the config: of fewer than a block has, its first."""
    requests = [Request(story(30, 21), 6), Request(story(67, 22), 5, 1)]
    for drafts in range(1, most + 1):
        with drafting(engine, drafts):
            assert_accepted_as_the_oracle(engine, drafts, requests)


def assert_planned(engine: Engine, folder: Path, device: str) -> None:
    """Weights, the pool of blocks and what the draft keeps are those that `plan` counts."""
    config, runner = engine.engine.vllm_config, engine.runner
    model, scheduler = config.model_config, config.scheduler_config
    stored = Path(config.speculative_config.draft_model_config.model)
    way = Speculation("dspark", config.num_speculative_tokens, None if stored == folder else stored)
    request = PlanRequest(
        device,
        max_model_len=model.max_model_len,
        dtype="float32",
        cache_dtype="model",
        memory_bytes=1 << 30,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        speculative_tokens=way.tokens,
        draft=way,
        graphs=False,
    )
    source = read_model(folder)
    plan = make_plan(source, request)
    target = {id(p): p.nbytes for p in runner.get_model().parameters()}
    draft = {id(p): p.nbytes for p in runner.drafter.model.parameters() if id(p) not in target}
    assert plan.weights["draft"] == sum(draft.values())
    assert sum(plan.weights.values()) == sum(draft.values()) + sum(target.values())
    storages = [one.untyped_storage() for one in engine.caches.values()]
    pool = {storage.data_ptr(): storage.nbytes() for storage in storages}
    assert sum(pool.values()) == config.cache_config.num_gpu_blocks * plan.pool.stride

    sizes = DraftTarget(
        source.spec.hidden_size, source.spec.vocab_size, model.max_model_len, model.dtype
    )
    planned = plan_v4_draft(source, request, sizes, plan.projection)
    held = vars(runner.drafter) | {"_last_draft_probs": None}
    kept = [one for one in held.values() if isinstance(one, torch.Tensor)]
    kept.append(runner.drafter.backup_next_token_ids.gpu)
    kept += [one for name, one in runner.drafter.model.named_buffers() if "rotary" in name]
    assert planned.buffers.bytes == sum(one.nbytes for one in kept)


def _counted(engine: Engine) -> list[float]:
    return [engine.metric(f"vllm:spec_decode_{name}") for name in _COUNTERS]


@contextmanager
def recording_blocks(engine: Engine) -> Iterator[list[tuple[int, torch.Tensor]]]:
    """Collect where each block of the first request begins, and its rows ``[Q, H]``."""
    found: list[tuple[int, torch.Tensor]] = []

    def keep(module: Any, given: Any, output: torch.Tensor) -> None:
        _, positions, block = given
        found.append((int(positions[0]), output[:block].float().cpu().clone()))

    handle = engine.runner.drafter.model.register_forward_hook(keep)
    try:
        yield found
    finally:
        handle.remove()


def assert_rows_of_the_oracle(engine: Engine, drafts: int, prompt: list[int], count: int) -> None:
    """The draft's hidden states in every step of a request are those of plain torch."""
    with recording_blocks(engine) as blocks:
        result = engine.run([Request(prompt, count)])[0]
    ids = [*prompt, *result.tokens]
    compared = 0
    for begin, rows in blocks:
        if begin < len(prompt) or begin >= len(ids):
            continue
        expected = oracle().rows(ids[: begin + 1], drafts)
        torch.testing.assert_close(rows, expected, rtol=1e-4, atol=FLOAT32_LOGITS_ATOL)
        compared += 1
    assert compared > 1
