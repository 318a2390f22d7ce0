"""Ways to draft for the trained tiny targets, and what all of them must keep to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match
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
