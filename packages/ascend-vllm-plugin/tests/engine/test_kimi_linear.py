"""Kimi-Linear on the real engine: logits and greedy tokens against transformers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_attention.vllm.linear import LinearStateLayer
from ascend_models_kimi.testing import KimiLinearOracle
from ascend_vllm_plugin.planning.block_pool import caches_of, pool_of
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.states import StateUse
from ascend_vllm_plugin.planning.weights import Layout, WeightFormat, weights_by_part

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

NAME = "kimi_linear"
VOCAB = 512
LENGTHS = (1, 3, 63, 64, 65, 130, 370)
CHUNKS = {
    7: [(5, 12, 0), (64, 9, 2), (66, 5, 4)],
    64: [(1, 14, 0), (130, 6, 1), (257, 4, 3)],
    65: [(3, 14, 0), (130, 6, 1), (257, 4, 3)],
}

DRAFTS = 3
SPECULATION: dict[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": DRAFTS,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 2,
}


def oracle_of(checkpoints: Checkpoints, name: str = NAME) -> KimiLinearOracle:
    oracle = checkpoints.oracle(name)
    assert isinstance(oracle, KimiLinearOracle)
    return oracle


def requests_of(
    oracle: KimiLinearOracle, shapes: list[tuple[int, int, int]], seed: int = 0
) -> list[Request]:
    """Requests of so many prompt and generated tokens, and the steps at which they join."""
    return [
        Request(oracle.clear_prompt(length, count, seed=seed + length), count, at)
        for length, count, at in shapes
    ]


def assert_as_planned(engine: Engine, folder: Path, use: StateUse) -> None:
    """The engine's weights, those of its draft included, and its pool are the planner's."""
    source, draft = read_model(folder), use.drafts > 0
    quantized = source.resolver.source is not None
    parts = weights_by_part(
        source.spec,
        Layout(),
        torch.float32,
        WeightFormat.STORED if quantized else WeightFormat.MODEL,
        draft=draft,
        resolver=source.resolver if quantized else None,
    )
    models = [engine.runner.get_model(), *([engine.runner.drafter.model] if draft else [])]
    held = {id(one): one for model in models for one in model.parameters()}
    scales = {
        id(one): one
        for model in models
        for name, one in model.named_buffers()
        # Those of vLLM's attention are no weights: it has four numbers of its own in every layer.
        if name.endswith("_scale") and one.dim()
    }
    assert sum(parts.values()) == sum(one.nbytes for one in (held | scales).values())
    caches = caches_of(source.spec, dtype=torch.float32, device="cpu", draft=draft, states=use)
    pool, allocated = pool_of(caches, draft=draft), engine.scheduler.kv_cache_config
    size = sum(tensor.size for tensor in allocated.kv_cache_tensors)
    assert size == pool.stride * allocated.num_blocks
    groups = allocated.kv_cache_groups
    assert sorted(len(one.caches) for one in pool.groups) == sorted(
        len(one.layer_names) for one in groups
    )
    assert pool.prefix_unit == engine.engine.vllm_config.cache_config.block_size


@pytest.fixture
def engine(engines: EnginePool) -> Engine:
    engine = engines.get(NAME, enable_prefix_caching=True)
    assert engine.llm.reset_prefix_cache()
    return engine


def test_prompts_together(engine: Engine, checkpoints: Checkpoints) -> None:
    oracle = oracle_of(checkpoints)
    requests = requests_of(oracle, [(n, 16, 0) for n in LENGTHS])
    assert_all_match(oracle, requests, engine.run(requests))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_share_steps_with_decodes(
    engine: Engine, checkpoints: Checkpoints, chunk: int
) -> None:
    oracle = oracle_of(checkpoints)
    requests = requests_of(oracle, CHUNKS[chunk], seed=100)
    with engine.scheduling_at_most(chunk):
        results = engine.run(requests)
    assert len({result.finished_at for result in results}) >= 2
    assert_all_match(oracle, requests, results)


def test_shared_prefix_with_other_endings(engine: Engine, checkpoints: Checkpoints) -> None:
    """The second run starts from the states at the end of the prefix's blocks."""
    oracle = oracle_of(checkpoints)
    unit = engine.engine.vllm_config.cache_config.block_size
    whole = [oracle.clear_prompt(300 + n, 8, seed=1) for n in (1, 3, 129)]
    assert all(one[:300] == whole[0][:300] for one in whole)
    engine.run([Request(whole[0][:300], 2)])
    requests = [Request(prompt, 8, join_at=i) for i, prompt in enumerate(whole)]
    with engine.scheduling_at_most(150):
        results = engine.run(requests)
    assert [result.cached for result in results] == [300 // unit * unit] * 3
    assert_all_match(oracle, requests, results)


def test_weights_and_pool_are_as_planned(engine: Engine, checkpoints: Checkpoints) -> None:
    assert_as_planned(engine, checkpoints.folder(NAME), StateUse(prefix_caching=True))


def test_states_of_free_slots_are_left_alone(engine: Engine) -> None:
    """A step writes the slots of its requests, and neither the null slot nor anybody else's."""
    layers = engine.engine.vllm_config.compilation_config.static_forward_context.values()
    states = [one for one in layers if isinstance(one, LinearStateLayer)]
    assert len(states) == 3
    saved = [[state.clone() for state in layer.kv_cache] for layer in states]
    with engine.recording_blocks() as used:
        engine.run([Request([5, 6, 7], 3), Request([9] * 70, 2)])
    for layer, before in zip(states, saved, strict=True):
        for now, then in zip(layer.kv_cache, before, strict=True):
            changed = (now != then).flatten(1).any(dim=1).nonzero().flatten().tolist()
            assert set(changed) <= used
            assert 0 not in changed
            assert bool(torch.isfinite(now[sorted(used)]).all())


def test_preempted_requests_resume(engines: EnginePool, checkpoints: Checkpoints) -> None:
    """Another model: a query latent, groups of experts, a convolution of three, odd sizes."""
    name = "kimi_linear_odd"
    oracle = oracle_of(checkpoints, name)
    engine = engines.get(
        name,
        max_model_len=512,
        num_gpu_blocks_override=10,
        max_num_batched_tokens=128,
        max_num_seqs=16,
    )
    shapes = [(120, 20, 0), (100, 40, 1), (125, 30, 2), (61, 80, 3), (9, 20, 4), (130, 10, 5)]
    requests = requests_of(oracle, shapes)
    before = engine.metric("vllm:num_preemptions")
    results = engine.run(requests)
    assert engine.metric("vllm:num_preemptions") > before
    assert_all_match(oracle, requests, results)


class Prophet:
    """Proposes what transformers would generate, wrong from a random place on.

    Stands in the place of the n-gram proposer, which finds nothing in random text.
    """

    def __init__(self, oracle: Any, requests: list[Request], vocab: int = VOCAB) -> None:
        self.random = random.Random(0)
        self.known = [r.prompt + oracle.greedy(r.prompt, r.count + DRAFTS).tokens for r in requests]
        self.vocab = vocab

    def __call__(
        self, most: int, sampled: list[list[int]], lengths: Any, ids: Any, **unused: Any
    ) -> list[list[int]]:
        drafts = []
        for row, new in enumerate(sampled):
            text = ids[row, : lengths[row]].tolist()
            known = next((k for k in self.known if k[: len(text)] == text), None)
            if not new or known is None or self.random.random() < 0.2:
                drafts.append([])
                continue
            right = known[len(text) : len(text) + self.random.randint(1, most)]
            first = self.random.randint(0, len(right))
            wrong = [(one + 1) % self.vocab for one in right[first:]]
            drafts.append(right[:first] + wrong)
        return drafts


@pytest.mark.parametrize("cached", [True, False], ids=["prefixes", "plain"])
def test_rejected_drafts_leave_no_trace(
    engines: EnginePool,
    checkpoints: Checkpoints,
    monkeypatch: pytest.MonkeyPatch,
    cached: bool,
) -> None:
    """Any number of drafts, right up to any place, and steps without: states go back each time.

    With prefix caching a state is also kept where accepted drafts cross the end of a block.
    """
    oracle = oracle_of(checkpoints)
    engine = engines.get(NAME, enable_prefix_caching=cached, speculative_config=SPECULATION)
    requests = requests_of(oracle, [(1, 12, 0), (240, 40, 0), (65, 12, 1), (250, 20, 2)])
    prophet = Prophet(oracle, requests)
    monkeypatch.setattr(engine.runner.drafter, "propose", prophet)
    names = ("num_draft_tokens", "num_accepted_tokens")
    before = [engine.metric(f"vllm:spec_decode_{name}") for name in names]
    with engine.scheduling_at_most(100):
        results = engine.run(requests)
    drafted, accepted = (
        engine.metric(f"vllm:spec_decode_{name}") - then
        for name, then in zip(names, before, strict=True)
    )
    assert 10 < accepted < drafted
    assert_all_match(oracle, requests, results)
    if cached:
        again = [Request(requests[i].prompt + results[i].tokens, 4) for i in (1, 3)]
        results = engine.run(again)
        assert [result.cached for result in results] == [256, 256]
        assert_all_match(oracle, again, results)
