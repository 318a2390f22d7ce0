"""Where the time of our decode goes."""

from __future__ import annotations

import cProfile
import io
import pstats
from pathlib import Path

from benchmarks import peer_ours
from benchmarks.workload import Workload


def run(checkpoint: Path, dtype: str, batch: int) -> str:
    """Cumulative and own seconds of the functions that matter, over 64 decode steps."""
    llm = peer_ours.engine(checkpoint, dtype)
    workload = Workload(dtype, batch)
    peer_ours._round(llm, workload.prompts(-1), 8, "warm-up")
    profiler = cProfile.Profile()
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=65, temperature=0, detokenize=False, ignore_eos=True)
    core = llm.llm_engine
    for i, ids in enumerate(workload.prompts(0)):
        core.add_request(f"profile-{i}", {"prompt_token_ids": ids}, params)
    core.step()
    profiler.enable()
    while core.has_unfinished_requests():
        core.step()
    profiler.disable()
    text = io.StringIO()
    stats = pstats.Stats(profiler, stream=text)
    stats.sort_stats("tottime").print_stats(32)
    stats.sort_stats("cumulative").print_stats("ascend_", 45)
    return text.getvalue()
