"""Where the time of our decode goes."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path
from typing import NamedTuple

from benchmarks import peer_ours
from benchmarks.workload import Workload

# (label, end of the file's path, function); nested parts are indented.
_PARTS = (
    ("model", "deepseek_v4/model.py", "forward"),
    (". decoder layers", "deepseek_v4/few_tokens.py", "run_layers"),
    (". . where a step's rows lie", "dsa/few_tokens.py", "step"),
    (". . hyper-connections, mixing", "ops/hyper_connection/cpu.py", "pre_few"),
    (". . hyper-connections, spreading", "ops/hyper_connection/cpu.py", "spread"),
    (". . query and key-value rows", "ops/mla/cpu.py", "prologue_few"),
    (". . caches, selection, attention", "layers/cpu_few_tokens.py", "attention_step"),
    (". . output projection", "ops/mla/cpu.py", "epilogue_few"),
    (". . experts", "ops/experts/cpu.py", "experts_few"),
    ("projection to logits", "ops/linear/cpu.py", "linear"),
)


class Part(NamedTuple):
    """One part of a decode step.

    Attributes:
        label: its name; nested parts start with dots.
        milliseconds: per step.
        share: of the step.
    """

    label: str
    milliseconds: float
    share: float


def run(checkpoint: Path, dtype: str, batch: int) -> list[Part]:
    """Cumulative time of the parts over 64 decode steps, the profiler's own cost included.

    A layer's kernels are called one by one, as one call would show nothing of them.
    """
    from ascend_models_deepseek.deepseek_v4 import cpu_layer
    from vllm import SamplingParams

    cpu_layer.layer_step = cpu_layer.layer_step.py_func
    llm = peer_ours.engine(checkpoint, dtype)
    workload = Workload(dtype, batch)
    peer_ours.serve_round(llm, workload.prompts(-1), 8, "warm-up")
    params = SamplingParams(max_tokens=65, temperature=0, detokenize=False, ignore_eos=True)
    core = llm.llm_engine
    for i, ids in enumerate(workload.prompts(0)):
        core.add_request(f"profile-{i}", {"prompt_token_ids": ids}, params)
    core.step()
    profiler = cProfile.Profile()
    steps = 0
    profiler.enable()
    while core.has_unfinished_requests():
        core.step()
        steps += 1
    profiler.disable()
    return _parts(pstats.Stats(profiler), steps)


def _parts(stats: pstats.Stats, steps: int) -> list[Part]:
    entries = stats.stats.items()  # type: ignore[attr-defined]

    def seconds(ending: str, function: str) -> float:
        # Two classes of a file may share a method name; the larger one is the block meant.
        return max(
            (
                entry[3]
                for (file, _, name), entry in entries
                if name == function and file.endswith(ending)
            ),
            default=0.0,
        )

    total = seconds("v1/engine/llm_engine.py", "step")
    parts = [Part("whole step", total / steps * 1e3, 1.0)]
    for label, ending, function in _PARTS:
        spent = seconds(ending, function)
        parts.append(Part(label, spent / steps * 1e3, spent / total))
    return parts
