"""Kimi-K3 with a DSpark draft of random weights: what is drafted, row by row, and what is said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from ascend_models_kimi.testing import (
    K3_SPECS,
    K3DSparkOracle,
    K3Oracle,
    TinyK3DSparkSpec,
    write_k3_dspark,
)
from ascend_vllm_plugin.planning.drafts import Speculation
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model

from .harness import Engine, Request, Result, assert_all_match
from .speculation import check_every_width, interrupted

NAME = "k3"
SHAPES = [(1, 9, 0), (40, 7, 0), (65, 6, 1)]


def settings(folder: Path, width: int, **spec: Any) -> dict[str, Any]:
    """Arguments of an engine with a draft that is written to `folder`."""
    draft = write_k3_dspark(TinyK3DSparkSpec(K3_SPECS[NAME], **spec), folder)
    return {
        "hf_overrides": {"architectures": ["KimiLinearForCausalLM"]},
        "speculative_config": {
            "method": "dspark",
            "model": str(draft),
            "num_speculative_tokens": width,
        },
    }


@contextmanager
def recording(engine: Engine) -> Iterator[dict[str, list[list[int]]]]:
    """Collect what is drafted for every request that is not within its prompt."""
    seen: dict[str, list[list[int]]] = defaultdict(list)
    runner = engine.runner
    propose = runner.drafter.propose

    def propose_and_record(*given: Any, **named: Any) -> torch.Tensor:
        drafts: torch.Tensor = propose(*given, **named)
        names = runner.input_batch.req_ids
        within = runner.discard_request_mask.np[: len(names)]
        for name, skipped, row in zip(names, within, drafts.tolist(), strict=True):
            if not skipped:
                seen[name].append(row)
        return drafts

    runner.drafter.propose = propose_and_record
    try:
        yield seen
    finally:
        del runner.drafter.propose


def run(engine: Engine, requests: list[Request]) -> tuple[list[Result], list[list[list[int]]]]:
    """Results, and what was drafted for each request."""
    with recording(engine) as seen:
        results = engine.run(requests)
    by_name = sorted(seen, key=lambda name: int(name.split("-")[1]))
    return results, [seen[name] for name in by_name]


def check_drafts(engine: Engine, target: K3Oracle, draft: Path, width: int) -> None:
    """A ragged batch in chunks: tokens are the target's, and drafts those of the formulas.

    Thrown out while they have drafts, or with fewer drafts, requests say the same.
    """
    requests = [
        Request(target.clear_prompt(length, count + width, seed=length), count, at)
        for length, count, at in SHAPES
    ]
    with engine.scheduling_at_most(64):
        results, drafted = run(engine, requests)
    assert_all_match(target, requests, results)
    oracle = K3DSparkOracle(draft, target)
    for request, result, found in zip(requests, results, drafted, strict=True):
        rounds = oracle.speculate(request.prompt, result.tokens, width)
        assert len(rounds.drafts) >= 2
        assert found[: len(rounds.drafts)] == rounds.drafts
    tokens = [one.tokens for one in results]
    with interrupted(engine, 4, 7):
        again = engine.run(requests)
    assert [one.tokens for one in again] == tokens
    check_every_width(engine, requests, tokens)


def check_planned(engine: Engine, folder: Path, draft: Path) -> None:
    """The draft's weights and the pool of blocks, its caches among them, are those of `plan`."""
    config, runner = engine.engine.vllm_config, engine.runner
    way = Speculation("dspark", config.num_speculative_tokens, draft)
    request = PlanRequest(
        "cpu",
        max_model_len=config.model_config.max_model_len,
        dtype="float32",
        memory_bytes=1 << 30,
        speculative_tokens=way.tokens,
        draft=way,
        prefix_caching=config.cache_config.enable_prefix_caching,
    )
    plan = make_plan(read_model(folder), request)
    shared = {id(p) for p in runner.model.parameters()}
    own = sum(p.nbytes for p in runner.drafter.model.parameters() if id(p) not in shared)
    assert plan.weights["draft"] == own
    allocated = engine.scheduler.kv_cache_config
    size = sum(tensor.size for tensor in allocated.kv_cache_tensors)
    assert size == allocated.num_blocks * plan.pool.stride
