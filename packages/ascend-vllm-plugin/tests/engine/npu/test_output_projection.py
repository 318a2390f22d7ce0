"""Variants of the output projection in engines: two processes with graphs and drafts, and A5.

The two processes share the experts as well, over replicas and over tensor-parallel ranks.
"""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_fused_moe.eplb import initial_placement
from ascend_models_deepseek.testing import (
    MXFP8_OVER_BFLOAT16,
    SPECS,
    Oracle,
    random_prompt,
    write_checkpoint,
)
from ascend_ops_core.testing.forked_programs import ForkedPrograms, end_group
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.weights import Layout

from ..harness import Checkpoints, EnginePool, Request

pytestmark = pytest.mark.engine_npu

PROGRAM = Path(__file__).parent / "variants.py"
RANKS = 2
COUNT = 8
REDUNDANT = 3
TIMEOUT_S = 400
GRAPH_SIZES = [3, 6]
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "max_model_len": 256,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 100,
    "kv_cache_memory_bytes": 1 << 26,
    "enforce_eager": False,
    "compilation_config": {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": GRAPH_SIZES,
    },
    "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
}
SMALL = replace(SPECS["tensor_parallel"], compress_ratios=(0, 4), num_hash_layers=1, o_groups=2)


def prompt(length: int) -> list[int]:
    return random_prompt(length, SMALL.vocab_size, seed=length)


RUNS: dict[str, dict[str, Any]] = {
    # Each replica has requests of its own, and the second goes on without any. An odd number of
    # experts lies on both.
    "ExchangedOutputProjection": {
        "spec": replace(SMALL, n_routed_experts=7),
        "prompts": [[prompt(1), prompt(129)], [prompt(7)]],
        "settings": {
            "data_parallel_size": 2,
            "enable_expert_parallel": True,
            # The first rebalance follows the first step, so graphs are replayed between others.
            "enable_eplb": True,
            "eplb_config": {
                "num_redundant_experts": REDUNDANT,
                "window_size": 3,
                "step_interval": 3,
            },
            "additional_config": {"o_proj_tensor_parallel_size": 2},
        },
    },
    # One group of heads for two tensor-parallel ranks.
    "LatentParallelOutputProjection": {
        "spec": replace(SMALL, seed=5, o_groups=1, o_lora_rank=48),
        "prompts": [[prompt(5), prompt(101)]],
        "settings": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    },
}


@pytest.fixture(scope="module")
def folder(programs: ForkedPrograms, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints, and what both processes returned."""
    root = tmp_path_factory.mktemp("variants")
    runs = []
    for name, run in RUNS.items():
        model = write_checkpoint(run["spec"], root / name)
        runs.append(
            {
                "port": free_port(),
                "count": COUNT,
                "prompts": run["prompts"],
                "settings": SETTINGS | {"model": str(model)} | run["settings"],
            }
        )
    arguments = root / "arguments.json"
    arguments.write_text(json.dumps({"ranks": RANKS, "runs": runs}))
    logs = [root / f"log.{rank}" for rank in range(RANKS)]
    started = [
        programs.start(
            PROGRAM, [str(arguments), str(rank)], log, VLLM_ENABLE_V1_MULTIPROCESSING="0"
        )
        for rank, log in enumerate(logs)
    ]
    try:
        codes = [programs.wait(process, TIMEOUT_S) for process in started]
    finally:
        for process in started:
            end_group(process)
    assert codes == [0] * RANKS, "\n".join(log.read_text()[-4000:] for log in logs)
    return root


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("name", RUNS)
def test_greedy_tokens_are_those_of_transformers(name: str, folder: Path) -> None:
    """Prompts exceed the buffers and run without graphs; decode steps and padding replay them."""
    index, run = list(RUNS).index(name), RUNS[name]
    oracle = Oracle(folder / name)
    found = [json.loads((folder / f"result.{rank}.json").read_text())[index] for rank in range(2)]
    for rank, result in enumerate(found):
        replica = rank // run["settings"].get("tensor_parallel_size", 1)
        for ids, tokens in zip(run["prompts"][replica], result["tokens"], strict=True):
            assert tokens == oracle.greedy(ids, COUNT).tokens
        assert result["layer"] == name
        redundant = REDUNDANT if "enable_eplb" in run["settings"] else 0
        assert result["experts"] == -(-(run["spec"].n_routed_experts + redundant) // RANKS)
        assert result["graphs"] == GRAPH_SIZES
        assert result["buffers"] == ["o_proj_send", "o_proj_received"]
    # A replica without requests takes part in every replay of the other.
    assert found[0]["replays"] == found[1]["replays"] >= 3


def test_experts_were_moved_between_replays(folder: Path) -> None:
    """Those of the draft too; every one is still there, and the ranks agree."""
    found = [json.loads((folder / f"result.{rank}.json").read_text())[0] for rank in range(RANKS)]
    experts = RUNS["ExchangedOutputProjection"]["spec"].n_routed_experts
    start = initial_placement(experts, RANKS, REDUNDANT).physical_to_logical
    tables = found[0]["placements"]
    assert tables == found[1]["placements"]
    assert len(tables) == len(SMALL.compress_ratios) + 1
    assert all(len(one) == experts + REDUNDANT for one in tables)
    assert all(set(one) == set(range(experts)) for one in tables)
    assert any(tuple(one) != start for one in tables)
    assert found[0]["failure"] == found[1]["failure"] == ""


@pytest.mark.parametrize("name", RUNS)
def test_a_rank_loads_what_was_planned(name: str, folder: Path) -> None:
    """Weights exactly; with rotary tables and the buffers of fixed address within 1 %."""
    index, settings = list(RUNS).index(name), RUNS[name]["settings"]
    tensor = settings.get("tensor_parallel_size", 1)
    data = settings.get("data_parallel_size", 1)
    exchange = settings.get("additional_config", {}).get("o_proj_tensor_parallel_size", 1)
    request = PlanRequest(
        "A3",
        Layout(tensor, data, RANKS, redundant=REDUNDANT if "enable_eplb" in settings else None),
        max_model_len=256,
        dtype="float32",
        memory_bytes=64 * 1024**3,
        max_num_batched_tokens=100,
        max_num_seqs=2,
        speculative_tokens=2,
        capture_sizes=tuple(GRAPH_SIZES),
        o_proj_tensor_parallel_size=exchange,
    )
    plan = make_plan(read_model(folder / name), request)
    assert plan.projection.variant.layout == {1: "olora_tp", 2: "otp"}[exchange]
    exchanged = plan.projection.buffer_bytes(GRAPH_SIZES[-1], 4)
    streams = 100 * plan.source.spec.hc_mult * plan.source.spec.hidden_size * 4
    planned = sum(plan.weights.values()) + plan.rotary_bytes + exchanged + streams
    for rank in range(RANKS):
        found = json.loads((folder / f"result.{rank}.json").read_text())[index]["memory"]
        # The plan is for the fullest card.
        assert found["weights"] <= sum(plan.weights.values())
        assert found["loaded"] <= 1.01 * planned
        if rank == 0:
            assert found["weights"] == sum(plan.weights.values())
            assert found["loaded"] == pytest.approx(planned, rel=0.01)


@pytest.mark.usefixtures("family")
def test_fp8_on_a5(engines: EnginePool, checkpoints: Checkpoints) -> None:
    """Logits of a bfloat16 engine whose output projections are MXFP8, against transformers.

    Its decode steps are replays of graphs, in which experts must not ask the host how many tokens
    each of them has.
    """
    engine = engines.get(
        "tensor_parallel",
        torch.bfloat16,
        additional_config={"device_family": "A5", "o_proj": "fp8"},
        max_num_batched_tokens=64,
        enforce_eager=False,
        compilation_config={
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [1, 2],
        },
    )
    layer = engine.runner.get_model().model.layers[0].attn.o_proj
    assert layer.wo_a.dtype == layer.wo_b.dtype == torch.float8_e4m3fn
    ids = prompt(100)
    (result,) = engine.run([Request(ids, 4, prompt_logits=True)])
    assert engine.runner.model.captured_sizes == [1, 2]
    engines.close()
    assert result.prompt_logits is not None
    folder = checkpoints.folder("tensor_parallel", torch.bfloat16)
    ids = ids + result.tokens[:-1]
    truth = Oracle(folder).logits(ids)
    logits = torch.cat([result.prompt_logits, result.logits])
    error = float((logits - truth).abs().mean())
    yardstick = float((Oracle(folder, torch.bfloat16).logits(ids) - truth).abs().mean())
    assert error <= MXFP8_OVER_BFLOAT16 * yardstick, (error, yardstick)
