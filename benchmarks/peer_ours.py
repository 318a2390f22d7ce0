"""This project's model in vLLM's engine on the workload."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.models import MODELS
from benchmarks.workload import Measurement, Workload, peak_rss_mb

CACHE_BYTES = 256 << 20


def engine(checkpoint: Path, dtype: str, cache_bytes: int = CACHE_BYTES, **settings: Any) -> Any:
    """An in-process engine whose whole batch fits one prefill step.

    Args:
        checkpoint: its directory.
        dtype: of the model.
        cache_bytes: memory of the caches.
        settings: further arguments of ``vllm.LLM``, which go before those here.
    """
    from vllm import LLM

    given: dict[str, Any] = {
        "dtype": dtype,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 8 * 512,
        "kv_cache_memory_bytes": cache_bytes,
        "enable_prefix_caching": False,
    }
    return LLM(model=str(checkpoint), **given | settings)


def run(checkpoint: Path, workload: Workload) -> Measurement:
    """Measure prefill and decode through ``LLMEngine.step``."""
    llm = engine(checkpoint, workload.dtype, **MODELS[workload.model].settings)
    result = Measurement("ascend", workload)
    # Two warm-up rounds load every kernel that the measured ones use.
    serve_round(llm, workload.prompts(-1), 8, "warm-up-a")
    serve_round(llm, workload.prompts(-2), 8, "warm-up-b")
    for repeat in range(workload.repeats):
        prefill, decode, tokens = serve_round(
            llm, workload.prompts(repeat), workload.decode, f"r{repeat}"
        )
        result.prefill_s.append(prefill)
        result.decode_s.append(decode)
        if repeat == 0:
            result.tokens = tokens
    result.peak_rss_mb = peak_rss_mb()
    return result


def serve_round(
    llm: Any, prompts: list[list[int]], decode: int, name: str
) -> tuple[float, float, list[int]]:
    """Serve one batch: seconds to everyone's first token, seconds after it, first tokens."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=decode + 1, temperature=0, detokenize=False, ignore_eos=True)
    core = llm.llm_engine
    for i, ids in enumerate(prompts):
        core.add_request(f"{name}-{i}", {"prompt_token_ids": ids}, params)
    produced: dict[str, list[int]] = {}
    start = time.perf_counter()
    prefill_end = start
    while core.has_unfinished_requests():
        for output in core.step():
            produced[output.request_id] = list(output.outputs[0].token_ids)
        if len(produced) == len(prompts) and prefill_end == start:
            prefill_end = time.perf_counter()
    end = time.perf_counter()
    first = next(tokens for key, tokens in produced.items() if key.startswith(f"{name}-0"))
    return prefill_end - start, end - prefill_end, first
