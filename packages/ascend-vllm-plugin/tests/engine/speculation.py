"""Ways to draft for the trained tiny targets, and what all of them must keep to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_vllm_plugin.planning.drafts import DraftTarget, Speculation, plan_draft
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match
from .told import Told
from .trained import CHECKPOINTS, story_prompt, tokenizer

MAX_MODEL_LEN = 512


@dataclass(frozen=True)
class Way:
    """A target, a method, and how many tokens it drafts.

    Attributes:
        target: name of a spec.
        method: vLLM's name of the method.
        width: drafted tokens of a step.
        settings: further keys of `speculative_config`.
    """

    target: str
    method: str
    width: int
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.target.removeprefix('stories-')}-{self.method}-k{self.width}"

    @property
    def config(self) -> dict[str, Any]:
        """`speculative_config`; a draft's checkpoint is the one made for the target."""
        given = {"method": self.method, "num_speculative_tokens": self.width, **self.settings}
        if self.method in ("eagle3", "medusa"):
            name = f"{self.target.removeprefix('stories-')}-{self.method}"
            given.setdefault("model", str(CHECKPOINTS / name))
        return given


def engine_of(engines: EnginePool, way: Way, **settings: Any) -> Engine:
    """An engine whose caches hold less than the tests' larger batches."""
    return engines.get(
        way.target,
        speculative_config=way.config,
        max_model_len=MAX_MODEL_LEN,
        enable_prefix_caching=True,
        skip_tokenizer_init=False,
        **settings,
    )


def accepted(engine: Engine) -> float:
    """Drafts that were right since the process started."""
    return engine.metric("vllm:spec_decode_num_accepted_tokens")


def batch(shapes: list[tuple[int, int, int]], seed: int, **sampling: Any) -> list[Request]:
    """Requests of (prompt tokens, generated tokens, step at which they join)."""
    return [
        Request(story_prompt(n, seed + i), count, at, sampling=sampling)
        for i, (n, count, at) in enumerate(shapes)
    ]


def check_ragged_chunks_and_prefix(engine: Engine, checkpoints: Checkpoints, way: Way) -> None:
    """Requests join, end and are cut into chunks; a second run finds the prefix cached."""
    oracle = checkpoints.oracle(way.target)
    # A draft model's last cached block is computed again, so a hit takes two blocks.
    shapes = [(1, 30, 0), (300, 24, 0), (17, 12, 2), (127, 20, 3), (129, 9, 5)]
    requests = batch(shapes, seed=1)
    before = accepted(engine)
    with engine.scheduling_at_most(90):
        results = engine.run(requests)
    assert_all_match(oracle, requests, results)
    # The others may have taken its blocks, so the first of these runs need not find them.
    again = [Request(requests[1].prompt, 24)] * 2
    results = [engine.run([request])[0] for request in again]
    assert results[1].cached > 0
    assert_all_match(oracle, again, results)
    assert accepted(engine) > before


def check_full_context(engine: Engine, checkpoints: Checkpoints, way: Way) -> None:
    """Drafts that would pass the longest context, beside a request that is far from it."""
    requests = batch([(MAX_MODEL_LEN - 9, 9, 0), (20, 30, 0), (MAX_MODEL_LEN - 1, 1, 2)], seed=20)
    assert_all_match(checkpoints.oracle(way.target), requests, engine.run(requests))


def check_mixed_sampling(engine: Engine, checkpoints: Checkpoints, way: Way) -> None:
    """Greedy rows beside random ones that have one choice, and beside truly random ones."""
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 0.7, "top_p": 1e-6},
    ]
    requests = [
        Request(story_prompt(40 + i, 30 + i), 16, sampling=kind) for i, kind in enumerate(kinds)
    ]
    results = engine.run(requests)
    known = [0, 1, 3]
    assert_all_match(
        checkpoints.oracle(way.target), [requests[i] for i in known], [results[i] for i in known]
    )


def check_stops(engine: Engine, checkpoints: Checkpoints, way: Way) -> None:
    """A stop string and a stop token that lie inside a draft."""
    from vllm import SamplingParams

    prompt, count = story_prompt(60, 7), 40
    tokens = checkpoints.oracle(way.target).greedy(prompt, count).tokens
    text = tokenizer().decode(tokens)
    middle = text[len(text) // 2 :]
    stop = middle[: max(4, len(middle) // 4)]
    given: Any = [{"prompt_token_ids": prompt}]
    params = SamplingParams(max_tokens=count, temperature=0, stop=[stop])
    (output,) = engine.llm.generate(given, params, use_tqdm=False)
    assert output.outputs[0].text == text[: text.index(stop)]
    assert output.outputs[0].stop_reason == stop
    last = tokens[11]
    params = SamplingParams(max_tokens=count, temperature=0, stop_token_ids=[last])
    (output,) = engine.llm.generate(given, params, use_tqdm=False)
    assert list(output.outputs[0].token_ids) == tokens[: tokens.index(last) + 1]


def check_preemption(
    engine: Engine,
    checkpoints: Checkpoints,
    way: Way,
    shapes: tuple[tuple[int, int, int], ...] = tuple(
        (20 + 23 * i, 150 - 9 * i, i) for i in range(8)
    ),
) -> None:
    """Requests that are thrown out while they have drafts go on as if nothing had happened."""
    requests = batch(list(shapes), seed=40)
    before = engine.metric("vllm:num_preemptions")
    results = engine.run(requests)
    assert engine.metric("vllm:num_preemptions") > before
    assert_all_match(checkpoints.oracle(way.target), requests, results)


@contextmanager
def interrupted(engine: Engine, *steps: int) -> Iterator[None]:
    """Throw all running requests out in front of some of the engine's next steps.

    A cache that is too small does so as well, for models whose requests grow by small blocks.
    """
    step, count = engine.engine.step, 0

    def step_or_throw_out() -> Any:
        nonlocal count
        count += 1
        if count in steps:
            engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        return step()

    before = engine.metric("vllm:num_preemptions")
    engine.engine.step = step_or_throw_out
    try:
        yield
    finally:
        del engine.engine.step
    assert engine.metric("vllm:num_preemptions") > before


@contextmanager
def drafting(engine: Engine, width: int) -> Iterator[None]:
    """Let a running engine draft fewer tokens than its config says, as one with that config would.

    Set on the running engine, since an engine start for each number takes seconds. Steps learn the
    number from the scheduler; a block draft's rows follow from it. Nothing may be running.
    """
    scheduler, runner = engine.scheduler, engine.runner
    drafter = runner.drafter
    ahead = width + scheduler.num_lookahead_tokens - scheduler.num_spec_tokens
    set_here = [
        (scheduler, "num_spec_tokens", width),
        (runner, "num_spec_tokens", width),
        (runner, "prev_num_spec_tokens", width),
    ]
    if hasattr(scheduler, "_spec_token_placeholders"):
        set_here.append((scheduler, "_spec_token_placeholders", [-1] * width))
    if hasattr(drafter, "queries"):
        spec = drafter.model.spec
        set_here.append((drafter, "queries", spec.queries(width)))
        ahead = max(width, spec.least_drafts) + 1
    set_here.append((scheduler, "num_lookahead_tokens", max(0, ahead)))
    saved = [(owner, name, getattr(owner, name)) for owner, name, _ in set_here]
    count, widest = scheduler.make_spec_decoding_stats, scheduler.num_spec_tokens

    def count_as_ever(*given: Any, **named: Any) -> Any:
        # Counters by position were made for the config's drafts.
        scheduler.num_spec_tokens = widest
        try:
            return count(*given, **named)
        finally:
            scheduler.num_spec_tokens = width

    for owner, name, value in set_here:
        setattr(owner, name, value)
    scheduler.make_spec_decoding_stats = count_as_ever
    try:
        yield
    finally:
        del scheduler.make_spec_decoding_stats
        for owner, name, value in saved:
            setattr(owner, name, value)


@contextmanager
def recording_drafts(engine: Engine) -> Iterator[dict[str, list[list[int]]]]:
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


def check_drafts_behind_chunks(engine: Engine, prompt: list[int], count: int) -> None:
    """What is drafted behind a prompt that came in chunks is what is drafted behind a whole one."""
    found = []
    # A step with drafts must fit into a chunk.
    for chunk in (len(prompt), 17):
        assert engine.llm.reset_prefix_cache()
        with engine.scheduling_at_most(chunk), recording_drafts(engine) as seen:
            result = engine.run([Request(prompt, count)])[0]
        (drafted,) = seen.values()
        found.append((result.tokens, drafted))
    assert len(found[0][1]) > 1
    assert found[1] == found[0]


def repeating_prompt(oracle: Any, count: int) -> list[int]:
    """A story in whose continuation by so many tokens two tokens stand as they stood before.

    Methods that read text draft there.
    """
    for seed in range(100):
        prompt = story_prompt(60, 300 + seed)
        text = prompt + oracle.greedy(prompt, count).tokens
        pairs = list(pairwise(text))
        ends = range(len(prompt) - 1, len(text) - 3)
        if any(pairs[end] in pairs[:end] for end in ends):
            return prompt
    raise AssertionError("none of a hundred stories repeats itself")


def check_every_width(engine: Engine, requests: list[Request], expected: list[list[int]]) -> None:
    """Greedy tokens are the same with one draft a step, with two, up to those of the config."""
    widest = engine.engine.vllm_config.num_speculative_tokens
    for width in range(1, widest + 1):
        names = ("num_drafts", "num_draft_tokens")
        before = [engine.metric(f"vllm:spec_decode_{name}") for name in names]
        with drafting(engine, width):
            results = engine.run(requests)
        assert [one.tokens for one in results] == expected, width
        after = [engine.metric(f"vllm:spec_decode_{name}") for name in names]
        drafts, tokens = (b - a for a, b in zip(before, after, strict=True))
        # Methods that read text may find less.
        assert drafts > 0, width
        assert drafts <= tokens <= width * drafts
        if engine.engine.vllm_config.speculative_config.method not in ("ngram", "suffix"):
            assert tokens == width * drafts


def check_told(
    engine: Engine, checkpoints: Checkpoints, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts that are all right all stand, the least likely tokens never do; the text is the same.

    For a method that reads text.
    """
    oracle = checkpoints.oracle(way.target)
    requests = batch([(1, 20, 0), (33, 17, 0), (90, 24, 2)], seed=50)
    for worst in (False, True):
        told = Told(oracle, requests, worst=worst, most=way.width)
        names = ("num_draft_tokens", "num_accepted_tokens")
        before = [engine.metric(f"vllm:spec_decode_{name}") for name in names]
        with monkeypatch.context() as patch:
            patch.setattr(engine.runner.drafter, "propose", told)
            results = engine.run(requests)
        assert_all_match(oracle, requests, results)
        after = [engine.metric(f"vllm:spec_decode_{name}") for name in names]
        drafted, stood = (b - a for a, b in zip(before, after, strict=True))
        assert drafted > 0
        assert stood == (0 if worst else drafted)


def check_planned(engine: Engine, folder: Path, device: str) -> None:
    """Weights, blocks and buffers of target and draft are those that `plan` counts."""
    config, runner = engine.engine.vllm_config, engine.runner
    given, cache = config.speculative_config, config.cache_config
    # Of methods without a draft vLLM names the target.
    own = given.method in ("eagle3", "medusa", "dflash", "dspark")
    model = Path(given.draft_model_config.model) if own else None
    way = Speculation(given.method, given.num_speculative_tokens, model)
    dtype, length = config.model_config.dtype, config.model_config.max_model_len
    request = PlanRequest(
        device,
        max_model_len=length,
        dtype=str(dtype).removeprefix("torch."),
        block_size=cache.block_size,
        memory_bytes=1 << 30,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        speculative_tokens=way.tokens,
        draft=way,
        graphs=False,
    )
    source = read_model(folder)
    plan = make_plan(source, request)
    draft = getattr(runner.drafter, "model", None)
    if device != "cpu":
        # There vLLM packs matrices of its own layers, and drops what it packed.
        target = {id(p): p.nbytes for p in runner.model.parameters()}
        drafted = {} if draft is None else {id(p): p.nbytes for p in draft.parameters()}
        mine = sum(size for key, size in drafted.items() if key not in target)
        assert plan.weights.get("draft", 0) == mine
        assert sum(plan.weights.values()) == mine + sum(target.values())
    storages = [one.untyped_storage() for one in engine.caches.values()]
    pool = {storage.data_ptr(): storage.nbytes() for storage in storages}
    assert sum(pool.values()) == cache.num_gpu_blocks * plan.pool.stride

    hidden, vocabulary = source.spec.hidden_size, source.spec.vocab_size
    found = plan_draft(way, DraftTarget(hidden, vocabulary, length, dtype), request.step)
    held = vars(runner.drafter) | {"_last_draft_probs": None}
    kept = [one for one in held.values() if isinstance(one, torch.Tensor)]
    if way.method == "ngram_gpu":
        kept += [runner.token_ids_gpu_tensor, runner.num_tokens_no_spec_gpu]
    if "backup_next_token_ids" in held:
        kept.append(held["backup_next_token_ids"].gpu)
    tables = () if draft is None else (b for n, b in draft.named_buffers() if "cos_sin" in n)
    kept += {table.data_ptr(): table for table in tables}.values()
    assert found.buffers.bytes == sum(one.nbytes for one in kept)
