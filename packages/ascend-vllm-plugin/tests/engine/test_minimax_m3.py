"""MiniMax-M3's text model on the real engine: logits and greedy tokens against transformers.

One engine serves every length, chunk size, ragged batch and prefix hit; that selection matters is
shown for the very sequences that are compared.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import BFLOAT16_MEAN_RATIO, BFLOAT16_MEAN_SLACK
from ascend_models_minimax.testing import M3MtpOracle, M3Oracle
from ascend_ops_core.testing.language_models import random_prompt
from safetensors.torch import load_file, save_file

from .harness import Checkpoints, Engine, EnginePool, Request, assert_all_match

pytestmark = pytest.mark.engine

TEXT: dict[str, Any] = {"hf_overrides": {"architectures": ["MiniMaxM3SparseForCausalLM"]}}
"""Serves a checkpoint that also has images without them."""

MODELS = ("m3", "m3_odd")
LEAST_EFFECT = 0.05


def requests_of(
    oracle: M3Oracle, shapes: list[tuple[int, int, int]], seed: int = 0
) -> list[Request]:
    """Requests of so many prompt tokens, generated tokens, and step of joining."""
    return [
        Request(oracle.clear_prompt(length, count, seed=seed + length), count, at)
        for length, count, at in shapes
    ]


def assert_parity(engine: Engine, oracle: M3Oracle, requests: list[Request]) -> None:
    """Logits and tokens equal the oracle's, which all differ once every block is selected."""
    results = engine.run(requests)
    assert_all_match(oracle, requests, results)
    config = oracle.text.config
    reach = config.index_block_size * (config.index_topk_blocks + 1)
    sequences = [[*r.prompt, *o.tokens] for r, o in zip(requests, results, strict=True)]
    longer = [ids for ids in sequences if len(ids) > reach]
    assert longer
    assert all(oracle.selection_effect(ids) > LEAST_EFFECT for ids in longer)


@pytest.fixture(params=MODELS, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def oracle(checkpoints: Checkpoints, name: str) -> M3Oracle:
    oracle = checkpoints.oracle(name)
    assert isinstance(oracle, M3Oracle)
    return oracle


@pytest.fixture
def engine(engines: EnginePool, name: str) -> Engine:
    engine = engines.get(name, enable_prefix_caching=True, **TEXT)
    assert engine.llm.reset_prefix_cache()
    return engine


def test_lengths_around_blocks_and_top_k_in_one_ragged_batch(
    engine: Engine, oracle: M3Oracle
) -> None:
    config = oracle.text.config
    block, top_k = config.index_block_size, config.index_topk_blocks
    shapes = [(1, 12, 0), (block - 1, 8, 0), (block, 8, 1), (block + 1, 8, 2)]
    shapes += [(block * top_k, 20, 3), (block * top_k + 1, 8, 4), (400, 8, 5)]
    assert_parity(engine, oracle, requests_of(oracle, shapes))


@pytest.mark.parametrize("chunk", [7, 100])
def test_chunks_share_steps_with_decodes(engine: Engine, oracle: M3Oracle, chunk: int) -> None:
    requests = requests_of(oracle, [(5, 20, 0), (64, 8, 1), (150, 8, 2)], seed=500)
    with engine.scheduling_at_most(chunk):
        assert_parity(engine, oracle, requests)


def test_prefix_hits_change_nothing(engine: Engine, oracle: M3Oracle) -> None:
    request = requests_of(oracle, [(300, 8, 0)], seed=50)[0]
    results = [engine.run([request])[0] for _ in range(2)]
    assert [result.cached > 0 for result in results] == [False, True]
    assert_all_match(oracle, [request, request], results)
    assert oracle.selection_effect(request.prompt) > LEAST_EFFECT


def test_auxiliary_hidden_states_are_the_streams_in_front_of_layers(
    engine: Engine, oracle: M3Oracle
) -> None:
    """What an EAGLE-3 draft reads; transformers records the same of its layers."""
    model = engine.runner.model
    layers = len(model.model.layers)
    prompt = random_prompt(70, 490, seed=3)
    seen: list[Any] = []

    def record(_module: Any, _inputs: Any, output: Any) -> Any:
        seen.append(output)
        return output[0]

    model.set_aux_hidden_state_layers((0, 2, layers))
    handle = model.model.register_forward_hook(record)
    try:
        engine.generate(prompt, 1)
    finally:
        handle.remove()
        model.set_aux_hidden_state_layers(())
    expected = oracle.streams(prompt)
    for number, stream in zip((0, 2, layers), seen[0][1], strict=True):
        assert float((stream[: len(prompt)] - expected[number]).abs().max()) < 1e-4


SMALL_CACHE = {"max_num_batched_tokens": 128, "max_model_len": 512}


def test_preempted_requests_resume(engines: EnginePool, oracle: M3Oracle, name: str) -> None:
    block = oracle.text.config.index_block_size
    engine = engines.get(name, num_gpu_blocks_override=560 // block, **SMALL_CACHE, **TEXT)
    shapes = [(100, 60, 0), (90, 50, 1), (120, 40, 2), (5, 30, 3), (110, 40, 4)]
    before = engine.metric("vllm:num_preemptions")
    requests = requests_of(oracle, shapes, seed=700)
    results = engine.run(requests)
    assert engine.metric("vllm:num_preemptions") > before
    assert_all_match(oracle, requests, results)


# With two draft layers vLLM takes multiples of two drafts.
@pytest.mark.parametrize(
    ("name", "width"), [("m3", 1), ("m3", 2), ("m3", 3), ("m3_odd", 2)], indirect=["name"]
)
def test_tokens_and_acceptance_of_drafts(
    engines: EnginePool, oracle: M3Oracle, name: str, width: int
) -> None:
    """Tokens and logits are the target's, and as many drafts are right as the oracle says."""
    engine = engines.get(
        name,
        enable_prefix_caching=True,
        speculative_config={"method": "mtp", "num_speculative_tokens": width},
        **TEXT,
    )
    shapes = [(1, 24, 0), (40, 24, 0), (129, 12, 2)]
    requests = [
        Request(oracle.clear_prompt(length, count + width, seed=length), count, at)
        for length, count, at in shapes
    ]
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    before = [engine.metric(f"vllm:spec_decode_{one}") for one in names]
    with engine.scheduling_at_most(100):
        results = engine.run(requests)
    after = [engine.metric(f"vllm:spec_decode_{one}") for one in names]
    assert_all_match(oracle, requests, results)
    drafts = M3MtpOracle(oracle)
    expected = [drafts.speculate(r.prompt, r.count, width) for r in requests]
    if name == "m3":
        assert sum(one.accepted for one in expected) > 0
    assert [a - b for a, b in zip(after, before, strict=True)] == [
        sum(one.rounds for one in expected),
        sum(one.drafted for one in expected),
        sum(one.accepted for one in expected),
    ]


def test_bfloat16_is_as_close_as_transformers(
    engines: EnginePool, checkpoints: Checkpoints
) -> None:
    """A selection can flip, so that single logits have no useful bound, while their mean has."""
    folder = checkpoints.folder("m3", torch.bfloat16)
    engine = engines.get("m3", torch.bfloat16, **TEXT)
    requests = [
        Request(random_prompt(length, 490, seed=length), 6, prompt_logits=True)
        for length in (3, 200)
    ]
    exact, rounded = M3Oracle(folder), M3Oracle(folder, torch.bfloat16)
    ours, theirs = [], []
    for request, result in zip(requests, engine.run(requests), strict=True):
        ids = [*request.prompt, *result.tokens[:-1]]
        truth = exact.logits(ids)
        assert result.prompt_logits is not None
        ours.append((torch.cat([result.prompt_logits, result.logits]) - truth).abs().flatten())
        theirs.append((rounded.logits(ids) - truth).abs().flatten())
    error, yardstick = float(torch.cat(ours).mean()), float(torch.cat(theirs).mean())
    assert 0 < error <= BFLOAT16_MEAN_RATIO * yardstick + BFLOAT16_MEAN_SLACK, (error, yardstick)


def test_no_library_that_needs_cuda_is_imported(engines: EnginePool) -> None:
    """vLLM's package of the model imports its classes for CUDA, which must stay at that."""
    engines.get("m3", **TEXT)
    libraries = {"cutlass", "deep_gemm", "flash_attn", "flashinfer"}
    assert not [name for name in sys.modules if name.split(".")[0] in libraries]


def test_a_checkpoint_of_the_text_model_alone(
    engines: EnginePool, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """With the config that transformers saves, whose keys and model type are other ones."""
    engines.close()
    oracle = checkpoints.oracle("m3")
    stored = load_file(checkpoints.folder("m3") / "model.safetensors")
    root = "language_model."
    save_file(
        {name.removeprefix(root): one for name, one in stored.items() if name.startswith(root)},
        tmp_path / "model.safetensors",
    )
    config = json.loads(oracle.text.config.to_json_string())
    assert config["model_type"] == "minimax_m3_vl_text"
    assert "sparse_attention_config" not in config
    config["architectures"] = ["MiniMaxM3SparseForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = Engine(tmp_path)
    try:
        assert_parity(engine, oracle, requests_of(oracle, [(1, 6, 0), (129, 6, 0)]))
    finally:
        engine.close()
