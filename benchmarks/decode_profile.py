"""Where the time of our decode goes."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path
from typing import NamedTuple

from benchmarks import peer_ours
from benchmarks.models import MODELS
from benchmarks.workload import Workload

# (label, end of the file's path, function); nested parts are indented.
_V4 = (
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


_V32 = (
    ("model", "deepseek_v3/model.py", "forward"),
    (". attention", "vllm/sfa/layer.py", "forward"),
    (". . projections in front", "layers/mla.py", "project"),
    (". . cached rows", "vllm/sfa/impl.py", "_write"),
    (". . indexer", "vllm/sfa/indexer.py", "select"),
    (". . . its projections", "layers/token_indexer.py", "project"),
    (". . queries to latents", "layers/mla.py", "absorb"),
    (". . attention", "ops/sparse_mla/__init__.py", "sparse_mla"),
    (". . latents to values", "layers/mla.py", "values"),
    (". . output projection", "layers/mla.py", "output"),
    (". experts and routing", "deepseek_v3/moe.py", "forward"),
    (". . experts", "ops/experts/__init__.py", "fused_experts"),
    ("projection to logits", "deepseek_v3/model.py", "compute_logits"),
)
_M3 = (
    ("model", "minimax_m3/model.py", "forward"),
    (". attention", "vllm/msa/layer.py", "forward"),
    (". . projections in front", "layers/qkv_indexer.py", "forward"),
    (". . norms and rotations", "vllm/msa/layer.py", "_turn"),
    (". . caches, selection, attention", "vllm/msa/impl.py", "forward"),
    (". . . indexer", "vllm/msa/indexer.py", "forward"),
    (
        ". . . attention",
        "ops/block_sparse_attention/__init__.py",
        "block_sparse_attention",
    ),
    (". experts and routing", "minimax_m3/moe.py", "forward"),
    (". . experts", "layers/routed_experts.py", "forward_tokens"),
    ("projection to logits", "minimax_m3/model.py", "compute_logits"),
)
_KIMI = (
    ("model", "kimi_linear/model.py", "forward"),
    (". delta attention", "linear/kda.py", "forward"),
    (". . projections in front", "layers/kda.py", "project"),
    (". . gates", "ops/linear_gates/__init__.py", "kda_gates"),
    (". . convolution, recurrence, states", "linear/core.py", "gated_delta_step"),
    (". . output projection", "layers/kda.py", "output"),
    (". latent attention", "kimi_linear/attention.py", "forward"),
    (". . caches and attention", "vllm/mla/impl.py", "forward"),
    (". experts and routing", "kimi_linear/moe.py", "forward"),
    (". . experts", "layers/routed_experts.py", "forward_tokens"),
    ("projection to logits", "kimi_linear/model.py", "compute_logits"),
)
_QWEN3_NEXT = (
    ("model", "models/qwen3_next.py", "forward"),
    (". Gated DeltaNet", "linear/gdn.py", "forward"),
    (". . queries, keys, values, gates apart", "ops/projection_split/__init__.py", "split_qkvz_ba"),
    (". . gates", "ops/linear_gates/__init__.py", "gdn_gates"),
    (". . convolution, recurrence, states", "linear/core.py", "gated_delta_step"),
    (". . norm and output projection", "qwen_gdn_linear_attn.py", "_output_projection"),
    (". experts and routing", "runner/moe_runner.py", "forward"),
    (". . experts", "ops/experts/__init__.py", "fused_experts"),
    ("projection to logits", "layers/logits_processor.py", "forward"),
)
_PARTS = {"v4": _V4, "v32": _V32, "m3": _M3, "kimi_linear": _KIMI, "qwen3_next": _QWEN3_NEXT}


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


def run(model: str, checkpoint: Path, dtype: str, batch: int) -> list[Part]:
    """Cumulative time of the parts over 64 decode steps, the profiler's own cost included.

    Of DeepSeek-V4 a layer's kernels are called one by one, as one call would show nothing of them.
    """
    from ascend_models_deepseek.deepseek_v4 import cpu_layer
    from vllm import SamplingParams

    cpu_layer.layer_step = cpu_layer.layer_step.py_func
    for name, apart in list(vars(cpu_layer).items()):
        if hasattr(apart, "kernel"):
            setattr(cpu_layer, name, apart.kernel)
    llm = peer_ours.engine(checkpoint, dtype, **MODELS[model].settings)
    workload = Workload(dtype, batch, model=model)
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
    return _parts(_PARTS[model], pstats.Stats(profiler), steps)


def _parts(of: tuple[tuple[str, str, str], ...], stats: pstats.Stats, steps: int) -> list[Part]:
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
    for label, ending, function in of:
        spent = seconds(ending, function)
        parts.append(Part(label, spent / steps * 1e3, spent / total))
    return parts
