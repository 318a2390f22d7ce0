"""The simulated NPU in other processes: two of them with tensor parallelism, and real kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ascend_models_deepseek.testing import FLOAT32_LOGITS_ATOL, random_prompt
from safetensors.torch import load_file

from ..harness import Checkpoints

pytestmark = pytest.mark.engine_npu

HERE = Path(__file__).parent
GENERATE = HERE.parents[1] / "serve" / "generate.py"
TIMEOUT_S = 400
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
    """Run one of the programs that call vLLM."""
    arguments = result.with_name("arguments.json")
    arguments.write_text(json.dumps(given))
    done = subprocess.run(
        [sys.executable, str(program), str(arguments), str(result)],
        env={**os.environ, "OMP_NUM_THREADS": "1"} | environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


def test_two_ranks_with_drafts_and_graphs(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """Tensor parallelism over gloo: every rank has a simulated device of its own process.

    Prompts run without graphs, in chunks; decode steps are captured, collectives included.
    """
    name, count = "tensor_parallel", 10
    prompts = [random_prompt(n, checkpoints.spec(name).vocab_size, seed=n) for n in (1, 5, 129)]
    settings = SETTINGS | {
        "model": str(checkpoints.folder(name)),
        "tensor_parallel_size": 2,
        "max_num_batched_tokens": 100,
        "enforce_eager": False,
        "compilation_config": {
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [3, 9],
        },
        "logprobs_mode": "raw_logits",
        "max_logprobs": -1,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
    }
    result = tmp_path / "result.safetensors"
    run(
        GENERATE,
        {"settings": settings, "prompts": prompts, "count": count},
        result,
        ASCEND_SIMULATED_NPU="family=A3,devices=2,kernels=reference",
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
    )
    stored, oracle = load_file(result), checkpoints.oracle(name)
    for i, prompt in enumerate(prompts):
        tokens = stored[f"tokens.{i}"].tolist()
        expected = oracle.picked_logits(prompt, tokens)
        assert len(tokens) == count
        assert float((stored[f"logits.{i}"] - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert expected.argmax(-1).tolist() == tokens


def test_every_kernel_in_the_path_runs_in_the_interpreter(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """Operators that chose a Triton kernel launched it, and the tokens are transformers'.

    Caches hold the family's rows, so that int8 keys are written.
    """
    name, prompt, count = "mixed", random_prompt(9, 512, seed=9), 3
    settings = SETTINGS | {
        "model": str(checkpoints.folder(name)),
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
    expected = checkpoints.oracle(name).greedy(prompt, count)
    assert found["tokens"] == [expected.tokens]
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
