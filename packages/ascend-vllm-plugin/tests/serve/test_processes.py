"""vLLM's default engine, in processes of its own, and two of them with tensor parallelism."""

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
from ascend_fused_moe.eplb import initial_placement
from ascend_models_deepseek.testing import (
    FLOAT32_LOGITS_ATOL,
    SPECS,
    Oracle,
    TinyV4Spec,
    random_prompt,
    write_checkpoint,
)
from ascend_models_deepseek.testing.oracle_v3 import V3Oracle
from ascend_models_deepseek.testing.tiny_v3 import V3_SPECS, TinyV3Spec, write_v3_checkpoint
from ascend_ops_core.testing.forked_programs import ForkedPrograms
from safetensors.torch import load_file

pytestmark = pytest.mark.serve

COUNT = 32
REDUNDANT = 3
TIMEOUT_S = 280
GENERATE = Path(__file__).with_name("generate.py")


@pytest.mark.parametrize(
    ("started", "spec", "settings"),
    [
        ("forked", SPECS["mixed"], {}),
        (
            # As users start it, so that every process has to find the plugin by itself.
            "anew",
            SPECS["tensor_parallel"],
            {
                "tensor_parallel_size": 2,
                "max_num_batched_tokens": 100,
                "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
            },
        ),
        (
            "forked",
            replace(SPECS["tensor_parallel"], n_routed_experts=7),
            {
                "tensor_parallel_size": 2,
                "enable_expert_parallel": True,
                "max_num_batched_tokens": 100,
                "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
                "enable_eplb": True,
                "eplb_config": {
                    "num_redundant_experts": REDUNDANT,
                    "window_size": 8,
                    "step_interval": 8,
                },
            },
        ),
        (
            "forked",
            replace(V3_SPECS["v3"], n_routed_experts=12, n_group=3),
            {
                "tensor_parallel_size": 2,
                "enable_expert_parallel": True,
                "max_num_batched_tokens": 100,
                "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
            },
        ),
    ],
    ids=["multiprocess", "tp2_mtp_chunked", "ep2_eplb_mtp_chunked", "v3_ep2_mtp_chunked"],
)
def test_engine_in_other_processes(
    started: str,
    spec: TinyV4Spec | TinyV3Spec,
    settings: dict[str, Any],
    programs: ForkedPrograms,
    tmp_path: Path,
) -> None:
    folder, oracle = made(spec, tmp_path / "checkpoint")
    lengths = (1, 5, 128, 129, 370)
    prompts = [random_prompt(length, spec.vocab_size, seed=length) for length in lengths]
    copied = programs if started == "forked" else None
    stored = stored_by(copied, folder, settings, prompts, tmp_path)
    for i, prompt in enumerate(prompts):
        tokens, logits = stored[f"tokens.{i}"].tolist(), stored[f"logits.{i}"]
        expected = oracle.picked_logits(prompt, tokens)
        assert len(tokens) == COUNT
        assert float((logits - expected).abs().max()) <= FLOAT32_LOGITS_ATOL
        assert expected.argmax(-1).tolist() == tokens
    if isinstance(spec, TinyV4Spec) and settings.get("enable_eplb"):
        assert_balanced(stored, spec)
    if settings.get("enable_expert_parallel"):
        assert_summed_once(stored)


def assert_balanced(stored: dict[str, torch.Tensor], spec: TinyV4Spec) -> None:
    """Experts have moved, in the draft's layer too, all are still there, and the ranks agree.

    The outputs compared above come from before, between and after the rebalances.
    """
    first, second = (stored[f"placements.{rank}"] for rank in range(2))
    assert torch.equal(first, second)
    experts, places = spec.n_routed_experts, spec.n_routed_experts + REDUNDANT
    assert first.shape == (len(spec.compress_ratios) + 1, places)
    assert all(set(table) == set(range(experts)) for table in first.tolist())
    start = list(initial_placement(experts, 2, REDUNDANT).physical_to_logical)
    assert any(table != start for table in first.tolist())


def assert_summed_once(stored: dict[str, torch.Tensor]) -> None:
    """The outputs of routed and shared experts are summed together, by one call in every layer."""
    for rank in range(2):
        calls = stored[f"reductions.{rank}"].tolist()
        assert calls == [1] * len(calls)
        assert calls


def made(spec: TinyV4Spec | TinyV3Spec, folder: Path) -> tuple[Path, Oracle]:
    """Write a spec's checkpoint and load it in transformers."""
    if isinstance(spec, TinyV4Spec):
        write_checkpoint(spec, folder)
        return folder, Oracle(folder)
    write_v3_checkpoint(spec, folder)
    return folder, V3Oracle(folder)


def run(
    programs: ForkedPrograms | None,
    folder: Path,
    settings: dict[str, Any],
    prompts: list[list[int]],
    where: Path,
    count: int = COUNT,
) -> list[tuple[list[int], torch.Tensor]]:
    """Run generate.py and return tokens and logits of every prompt."""
    stored = stored_by(programs, folder, settings, prompts, where, count)
    return [(stored[f"tokens.{i}"].tolist(), stored[f"logits.{i}"]) for i in range(len(prompts))]


def stored_by(
    programs: ForkedPrograms | None,
    folder: Path,
    settings: dict[str, Any],
    prompts: list[list[int]],
    where: Path,
    count: int = COUNT,
) -> dict[str, torch.Tensor]:
    """Run generate.py, as a copy of ``programs`` or as users do, and return what it stored."""
    defaults = {
        "model": str(folder),
        "dtype": "float32",
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": 1 << 26,
        "logprobs_mode": "raw_logits",
        "max_logprobs": -1,
    }
    arguments, result = where / "arguments.json", where / "result.safetensors"
    given = {"settings": defaults | settings, "prompts": prompts, "count": count}
    given["placements"] = "enable_eplb" in settings
    if settings.get("enable_expert_parallel"):
        given["reductions"] = True
        given["settings"]["worker_extension_cls"] = "experts_probe.ExpertsProbe"
    arguments.write_text(json.dumps(given))
    command = [str(arguments), str(result)]
    if programs is not None:
        programs.run(GENERATE, command, where / "log", TIMEOUT_S)
        return load_file(result)
    environ = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    done = subprocess.run(
        [sys.executable, str(GENERATE), *command],
        env=environ | {"PYTHONPATH": str(GENERATE.parent)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return load_file(result)
