"""Kimi-K3 with a DSpark draft of random weights: what is drafted, row by row, and what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ascend_models_kimi.testing import (
    K3_SPECS,
    K3DSparkOracle,
    K3Oracle,
    TinyK3DSparkSpec,
    write_k3_dspark,
)
from ascend_models_kimi.testing.k3_processor_files import PLACEHOLDER, write_k3_processor_files
from ascend_vllm_plugin.planning.drafts import Speculation
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model

from .harness import Checkpoints, Engine, Request, Result, assert_all_match
from .speculation import check_every_width, interrupted, recording_drafts
from .test_kimi_k3_images import assert_equal, expanded, picture, words

NAME = "k3"
SHAPES = [(1, 7, 0), (40, 6, 0), (33, 5, 1)]
SAID = 2
"""Tokens of a request before which rounds are compared: by hand they take long."""


def settings(folder: Path, width: int, **spec: Any) -> dict[str, Any]:
    """Arguments of an engine with a draft that is written to `folder`."""
    draft = write_k3_dspark(TinyK3DSparkSpec(K3_SPECS[NAME], **spec), folder)
    return {
        "skip_tokenizer_init": False,
        "limit_mm_per_prompt": {"image": 1},
        "speculative_config": {
            "method": "dspark",
            "model": str(draft),
            "num_speculative_tokens": width,
            "draft_sample_method": "probabilistic",
        },
    }


def target_of(checkpoints: Checkpoints) -> K3Oracle:
    """The target, whose folder then has what its processor of images reads."""
    write_k3_processor_files(checkpoints.folder(NAME))
    target = checkpoints.oracle(NAME)
    assert isinstance(target, K3Oracle)
    return target


def run(engine: Engine, requests: list[Request]) -> tuple[list[Result], list[list[list[int]]]]:
    """Results, and what was drafted for each request."""
    with recording_drafts(engine) as seen:
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
    with engine.scheduling_at_most(32):
        results, drafted = run(engine, requests)
    assert_all_match(target, requests, results)
    oracle = K3DSparkOracle(draft, target)
    for request, found in zip(requests, drafted, strict=True):
        said = target.greedy(request.prompt, SAID + width).tokens
        rounds = oracle.speculate(request.prompt, said, width)
        assert len(rounds.drafts) >= 2
        assert found[: len(rounds.drafts)] == rounds.drafts
    tokens = [one.tokens for one in results]
    with interrupted(engine, 4, 7):
        again = engine.run(requests)
    assert [one.tokens for one in again] == tokens
    # Two of them: every number takes as long as the longest.
    check_every_width(engine, requests[1:], tokens[1:])


def check_an_image_and_drawn_drafts(
    engine: Engine, target: K3Oracle, draft: Path, width: int
) -> None:
    """Drafts behind an image are those of the formulas; beside it others are drawn."""
    prompt, image = [*words(9, 1), PLACEHOLDER, *words(30, 2)], picture(13, 19, 1)
    requests = [
        Request(prompt, 8, media={"image": [image]}),
        Request(words(20, 3), 8, sampling={"temperature": 1.0, "top_k": 1}),
        Request(words(25, 4), 8, sampling={"temperature": 1.0, "seed": 5}),
    ]
    results, drafted = run(engine, requests)
    ids, embedded = expanded(target, engine.llm.get_tokenizer(), prompt, [image])
    assert_equal(target, ids, embedded, results[0])
    assert_equal(target, requests[1].prompt, {}, results[1])
    oracle = K3DSparkOracle(draft, target)
    said = target.greedy(ids, SAID + width, embedded).tokens
    rounds = oracle.speculate(ids, said, width, embedded)
    assert drafted[0][: len(rounds.drafts)] == rounds.drafts
    first = [results[2].tokens[0], *[0] * width]
    best = oracle.speculate(requests[2].prompt, first, width).drafts
    assert drafted[2][:1] != best, "drafts with a temperature are drawn"
    alone, _ = run(engine, requests[2:])
    assert alone[0].tokens == results[2].tokens, "a seed decides"


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
