"""Trained drafts of a Llama, and of DeepSeek-V4 with layers that are not its own.

Greedy tokens are those of transformers, and drafts are right as often as they were in training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

from ascend_models_deepseek.testing import Oracle
from ascend_models_deepseek.testing.oracle_v3 import V3Oracle
from ascend_specdec.testing.block_oracle import BlockOracle, load_draft
from ascend_vllm_plugin.planning.drafts import Speculation
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model

from .harness import Engine, Request
from .speculation import check_every_width, check_planned, interrupted
from .trained import CHECKPOINTS, story_prompt

DEMO = Path(__file__).parents[2] / "src/ascend_vllm_plugin/data/tiny-deepseek-v4"
TARGETS: dict[str, tuple[Path, Any]] = {
    "llama": (CHECKPOINTS / "llama", V3Oracle),
    "v4": (DEMO, Oracle),
}
WIDTH = 7
SHARE = 2 / 3
"""Of what was measured in training, that drafts of the tests' stories reach at least."""

_DRAFTS = "vllm:spec_decode_num_drafts"
_BY_PLACE = "vllm:spec_decode_num_accepted_tokens_per_pos"


@dataclass(frozen=True)
class Draft:
    """A draft in `tools/tiny_model/checkpoints`.

    Attributes:
        target: of :data:`TARGETS`.
        kind: what follows the target's name in that of its folder.
    """

    target: str
    kind: str

    def __str__(self) -> str:
        return f"{self.target}-{self.kind}"

    @property
    def folder(self) -> Path:
        """Its checkpoint."""
        return CHECKPOINTS / str(self)

    @property
    def measured(self) -> list[float]:
        """Share of drafts that stood at each place when it had been trained."""
        report = json.loads((self.folder / "training.json").read_text())
        if self.kind == "eagle3":
            # There each place is measured where all in front of it stood.
            return list(accumulate(report["agreement"], mul))
        found: list[float] = report["accepted_at_each_place"]
        return found


DRAFTS = (
    Draft("llama", "dflash2"),
    Draft("llama", "dspark"),
    Draft("v4", "dflash2"),
)


def start(draft: Draft, **settings: Any) -> Engine:
    """An engine of the target with the draft."""
    speculative = {
        "model": str(draft.folder),
        "method": "dflash" if draft.kind == "dflash2" else draft.kind,
        "num_speculative_tokens": WIDTH,
    }
    folder, _ = TARGETS[draft.target]
    given = {
        "max_model_len": 384,
        "max_num_batched_tokens": 256,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": 1 << 27,
    }
    return Engine(folder, speculative_config=speculative, **given | settings)


@cache
def oracle(target: str) -> Any:
    """transformers' model of a target, in float32."""
    folder, kind = TARGETS[target]
    return kind(folder)


def assert_said(draft: Draft, requests: Sequence[Request], tokens: Sequence[list[int]]) -> None:
    """Every token is transformers' best one behind those in front of it."""
    for request, found in zip(requests, tokens, strict=True):
        assert len(found) == request.count
        rows = oracle(draft.target).logits([*request.prompt, *found[:-1]])
        assert rows[len(request.prompt) - 1 :].argmax(dim=-1).tolist() == found


SHAPES = ((1, 40, 0), (64, 33, 1), (130, 40, 2), (31, 40, 0), (65, 40, 0), (100, 24, 2))
"""Requests of (prompt tokens, generated tokens, step at which they join)."""


def check_acceptance(engine: Engine, draft: Draft, most: int = len(SHAPES)) -> None:
    """A ragged batch in chunks: tokens, and at each place as many right drafts as there must be."""
    requests = [Request(story_prompt(n, n), count, at) for n, count, at in SHAPES[:most]]
    longer = [Request(one.prompt, one.count + WIDTH) for one in requests]
    said = [one.tokens for one in engine.run(longer)]
    assert_said(draft, longer, said)
    before = _counted(engine)
    with engine.scheduling_at_most(60):
        results = engine.run(requests)
    for request, result, whole in zip(requests, results, said, strict=True):
        assert result.tokens == whole[: request.count]
    rounds, *right = (b - a for a, b in zip(before, _counted(engine), strict=True))
    if draft.kind != "eagle3":
        model = BlockOracle(oracle(draft.target).model, load_draft(draft.folder))
        found = [
            model.speculate(one.prompt, whole, WIDTH)
            for one, whole in zip(requests, said, strict=True)
        ]
        columns = [one.accepted for one in found]
        assert rounds == sum(one.rounds for one in found)
        assert right == [sum(places) for places in zip(*columns, strict=True)]
    drafted = [token for whole in said for token in whole]
    commonest = max(drafted.count(token) for token in set(drafted)) / len(drafted)
    for place, (count, share) in enumerate(zip(right, draft.measured, strict=False)):
        # So few rounds may lie two standard errors beside what many would give.
        least = SHARE * share - 2 * (share * (1 - share) / rounds) ** 0.5
        assert count / rounds > least, (place, count / rounds, share)
        assert count / rounds > commonest ** (place + 1), "as often as the commonest token alone"


def check_widths(engine: Engine, draft: Draft) -> None:
    """Greedy tokens with one draft a step, with two, up to seven."""
    requests = [Request(story_prompt(1, 21), 6), Request(story_prompt(45, 22), 8)]
    tokens = [one.tokens for one in engine.run(requests)]
    assert_said(draft, requests, tokens)
    check_every_width(engine, requests, tokens)


def check_scheduling(engine: Engine, draft: Draft) -> None:
    """A context that fills up inside a draft, prefix hits, and requests that are thrown out."""
    longest = engine.engine.model_config.max_model_len
    # vLLM leaves the last block of a hit out where a draft reads hidden states.
    again = Request(story_prompt(longest - 12, 11), 12)
    first = engine.run([again])[0]
    assert_said(draft, [again], [first.tokens])
    second = engine.run([again])[0]
    assert (first.cached > 0, second.cached > 0) == (False, True)
    assert second.tokens == first.tokens
    requests = [Request(story_prompt(30 + 80 * i, 12 + i), 20) for i in range(2)]
    with interrupted(engine, 4, 7):
        results = engine.run([*requests, again])
    assert_said(draft, [*requests, again], [one.tokens for one in results])


def check_memory(engine: Engine, draft: Draft) -> None:
    """Caches, and of a Llama's drafts weights and buffers, are those that `plan` counts."""
    folder, _ = TARGETS[draft.target]
    if draft.target != "v4":
        check_planned(engine, folder, "cpu")
        return
    given = engine.engine.vllm_config.speculative_config
    way = Speculation(given.method, WIDTH, draft.folder)
    length = engine.engine.model_config.max_model_len
    request = PlanRequest(
        "cpu",
        max_model_len=length,
        dtype="float32",
        memory_bytes=1 << 30,
        speculative_tokens=WIDTH,
        draft=way,
    )
    plan = make_plan(read_model(folder), request)
    allocated = engine.scheduler.kv_cache_config
    sizes = {tensor.size for tensor in allocated.kv_cache_tensors}
    assert sizes == {allocated.num_blocks * plan.pool.stride}


def _counted(engine: Engine) -> list[float]:
    """Rounds so far, and drafts that stood at each place."""
    found = [m.values for m in engine.llm.get_metrics() if m.name == _BY_PLACE]
    return [engine.metric(_DRAFTS), *(sum(one) for one in zip(*found, strict=True))]
