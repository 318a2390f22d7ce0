"""The simulated NPU in other processes: two of them with tensor parallelism, and real kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ascend_models_deepseek.testing import (
    FLOAT32_LOGITS_ATOL,
    SPECS,
    Oracle,
    random_prompt,
    write_checkpoint,
)
from ascend_ops_core.testing.forked_programs import ForkedPrograms
from ascend_vllm_plugin.planning.plan import make_plan
from ascend_vllm_plugin.planning.request import PlanRequest
from ascend_vllm_plugin.planning.source import read_model
from ascend_vllm_plugin.planning.weights import Layout
from safetensors.torch import load_file

from ..draft_widths import prompt_of
from ..harness import Checkpoints

pytestmark = pytest.mark.engine_npu

HERE = Path(__file__).parent
GENERATE = HERE.parents[1] / "serve" / "generate.py"
TIMEOUT_S = 400
SHARE = 0.001
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "skip_tokenizer_init": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 1 << 26,
    # The float32 bars of these tests need it.
    "additional_config": {"cache_dtype": "model"},
}


def run(program: Path, given: dict[str, Any], result: Path, **environ: str) -> None:
    """Run one of the programs that call vLLM, as users do."""
    done = subprocess.run(
        [sys.executable, str(program), *command(given, result)],
        env={**os.environ, "OMP_NUM_THREADS": "1"} | environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


def command(given: dict[str, Any], result: Path) -> list[str]:
    """The arguments of such a program, with a file for what it is given."""
    arguments = result.with_name("arguments.json")
    arguments.write_text(json.dumps(given))
    return [str(arguments), str(result)]


@pytest.mark.parametrize(
    ("name", "context"), [("tensor_parallel", 1), ("v3", 2), ("v32", 2), ("glm", 1)]
)
def test_two_ranks_with_drafts_and_graphs(
    checkpoints: Checkpoints, programs: ForkedPrograms, tmp_path: Path, name: str, context: int
) -> None:
    """Tensor parallelism over gloo: every rank has a simulated device of its own process.

    Prompts run without graphs, in chunks; decode steps are captured, collectives included. Every
    rank allocates what was planned. The ranks of DeepSeek-V3 and V3.2 share every context as well.
    """
    count, oracle = 10, checkpoints.oracle(name)
    vocab = checkpoints.spec(name).vocab_size
    prompts = [prompt_of(oracle, vocab, length, count) for length in (1, 5, 129)]
    settings = SETTINGS | {
        "model": str(checkpoints.folder(name)),
        "tensor_parallel_size": 2,
        "decode_context_parallel_size": context,
        "max_num_batched_tokens": 100,
        "enforce_eager": False,
        "compilation_config": {
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [3, 9],
        },
        "logprobs_mode": "raw_logits",
        "max_logprobs": -1,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
        "kv_cache_memory_bytes": None,
        "gpu_memory_utilization": SHARE,
    }
    result = tmp_path / "result.safetensors"
    given = {"settings": settings, "prompts": prompts, "count": count, "memory": True}
    if name == "tensor_parallel":
        # Every process has to find the plugin and its device by itself.
        run(
            GENERATE,
            given,
            result,
            ASCEND_SIMULATED_NPU="family=A3,devices=2,kernels=reference",
            VLLM_ENABLE_V1_MULTIPROCESSING="1",
        )
    else:
        programs.run(GENERATE, command(given, result), tmp_path / "log", TIMEOUT_S)
    stored = load_file(result)
    for i, prompt in enumerate(prompts):
        tokens = stored[f"tokens.{i}"].tolist()
        expected = oracle.picked_logits(prompt, tokens)
        assert len(tokens) == count
        assert float((stored[f"logits.{i}"] - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert expected.argmax(-1).tolist() == tokens
    _check_memory(stored, checkpoints.folder(name), context, activations=name == "tensor_parallel")


def _check_memory(
    stored: dict[str, torch.Tensor], folder: Path, context: int, *, activations: bool
) -> None:
    """Activations are an estimate, which was held against engines of DeepSeek-V4 alone."""
    request = PlanRequest(
        "A3",
        Layout(2, context=context),
        max_model_len=256,
        dtype="float32",
        cache_dtype="model",
        memory_bytes=64 * 1024**3,
        gpu_memory_utilization=SHARE,
        max_num_batched_tokens=100,
        max_num_seqs=4,
        speculative_tokens=2,
        async_scheduling=False,
        capture_sizes=(3, 9),
        hccl_buffer_mib=1,
    )
    plan = make_plan(read_model(folder), request)
    # gloo has no buffers of HCCL's, so the caches get them.
    blocks = plan.pool.num_blocks(plan.cache_bytes + plan.hccl.bytes)
    for rank in (0, 1):
        found = {
            name.removeprefix(f"memory.{rank}."): int(value)
            for name, value in stored.items()
            if name.startswith(f"memory.{rank}.")
        }
        assert found["weights"] == sum(plan.weights.values())
        assert found["captured"] == 2
        assert found["caches"] == found["num_blocks"] * plan.pool.stride
        if activations:
            assert found["activations"] == pytest.approx(plan.activations.bytes, rel=0.05)
        assert found["num_blocks"] == pytest.approx(blocks, rel=0.01)


def test_replicas_of_which_one_has_nothing_to_do(
    checkpoints: Checkpoints, programs: ForkedPrograms, tmp_path: Path
) -> None:
    """Data parallelism: while one replica generates, the other joins every step without a token."""
    name, count = "mixed", 6
    prompts = {n: random_prompt(n, 512, seed=n) for n in (5, 1, 129, 40)}
    waves = [[(prompts[5], 0)], [(prompts[1], 0), (prompts[129], 1), (prompts[40], 1)]]
    settings = SETTINGS | {
        "model": str(checkpoints.folder(name)),
        "data_parallel_size": 2,
        "max_num_batched_tokens": 100,
        "enforce_eager": False,
        "compilation_config": {"cudagraph_capture_sizes": [2]},
    }
    result = tmp_path / "result.json"
    given = {"settings": settings, "waves": waves, "count": count}
    programs.run(HERE / "replicas.py", command(given, result), tmp_path / "log", TIMEOUT_S)
    oracle = checkpoints.oracle(name)
    expected = [[oracle.greedy(prompt, count).tokens for prompt, _ in wave] for wave in waves]
    assert json.loads(result.read_text()) == expected


def test_every_kernel_in_the_path_runs_in_the_interpreter(tmp_path: Path) -> None:
    """Operators that chose a Triton kernel launched it, and the tokens are transformers'.

    Caches hold the family's rows, so that int8 keys are written. One layer of each kind, since
    every one takes time, and one of them with hash routing.
    """
    spec = replace(SPECS["mixed"], compress_ratios=(0, 128, 4), num_hash_layers=1)
    folder = write_checkpoint(spec, tmp_path / "checkpoint")
    prompt, count = random_prompt(9, spec.vocab_size, seed=9), 3
    settings = SETTINGS | {
        "model": str(folder),
        "max_num_batched_tokens": 16,
        "max_num_seqs": 1,
        "additional_config": {"cache_dtype": "family"},
    }
    result = tmp_path / "result.json"
    run(
        HERE / "with_kernels.py",
        {"settings": settings, "prompts": [prompt], "count": count},
        result,
        ASCEND_SIMULATED_NPU="family=A3,kernels=interpreter",
        TRITON_INTERPRET="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
    )
    found = json.loads(result.read_text())
    assert found["tokens"] == [Oracle(folder).greedy(prompt, count).tokens]
    by_kernel = {op for op, chosen in found["chosen"].items() if "triton" in chosen}
    assert {
        "ascend_attention::quantize_index_rows",
        "ascend_attention::sparse_attention",
        "ascend_attention::write_rows",
        "ascend_fused_moe::topk_routing",
        "ascend_ops_core::hc_head",
        "ascend_ops_core::rms_norm_rotary",
    } <= by_kernel
    assert len(found["launches"]) >= len(by_kernel)
    assert all(count > 0 for count in found["launches"].values())
