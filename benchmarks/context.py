"""Time of a decode step of MiniMax-M3 against the length of the context, for two top-k."""

from __future__ import annotations

import datetime
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import peer_ours
from benchmarks.models import M3, M3_SETTINGS

_ROOT = Path(__file__).parents[1]
RAW = Path(__file__).parent / "results" / "context-m3.json"
PLOT = _ROOT / "docs" / "img" / "benchmark-m3-context.png"

CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
TOP_K = (4, 16)
_STEPS = 64
_SPEC = replace(
    M3,
    vocab_size=512,
    hidden_size=256,
    intermediate_size=128,
    dense_intermediate_size=512,
    num_attention_heads=8,
    num_key_value_heads=2,
    num_local_experts=4,
    num_experts_per_tok=2,
    block_size=128,
    sparse_layers=(1, 1, 1, 1),
    moe_layers=(0, 0, 0, 1),
    max_position_embeddings=CONTEXTS[-1] + 128,
)
"""Every layer selects blocks, and little else takes time."""


def measure(report: Callable[[str], Any]) -> dict[int, list[float]]:
    """Milliseconds of a decode step at each context, by top-k."""
    from ascend_models_minimax.testing.tiny_m3 import write_m3_checkpoint

    found: dict[int, list[float]] = {}
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        for top_k in TOP_K:
            checkpoint = write_m3_checkpoint(
                replace(_SPEC, topk_blocks=top_k), Path(folder) / str(top_k)
            )
            llm = peer_ours.engine(
                checkpoint,
                "float32",
                max_model_len=_SPEC.max_position_embeddings,
                max_num_batched_tokens=2048,
                **M3_SETTINGS,
            )
            found[top_k] = []
            for context in (CONTEXTS[0], *CONTEXTS):
                prompt = torch.randint(4, 490, (context,), generator=generator).tolist()
                name = f"{top_k}-{context}-{len(found[top_k])}"
                found[top_k].append(statistics.median(_steps(llm, prompt, name)) * 1e3)
                report(f"top {top_k}, context {context}: {found[top_k][-1]:.2f} ms a step")
            # The first one loaded every kernel.
            del found[top_k][0]
            llm.llm_engine.engine_core.shutdown()
    return found


def _steps(llm: Any, prompt: list[int], name: str) -> list[float]:
    """Seconds of every decode step behind a prompt."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=_STEPS + 1, temperature=0, detokenize=False, ignore_eos=True)
    core = llm.llm_engine
    core.add_request(name, {"prompt_token_ids": prompt}, params)
    while not core.step():
        pass
    seconds = []
    while core.has_unfinished_requests():
        start = time.perf_counter()
        core.step()
        seconds.append(time.perf_counter() - start)
    return seconds


def write(facts: dict[str, str], found: dict[int, list[float]]) -> None:
    """Write the raw numbers and the plot; the page is rendered by :mod:`benchmarks.report`."""
    raw = {
        "date": datetime.date.today().isoformat(),
        "machine": facts,
        "contexts": CONTEXTS,
        "milliseconds": found,
    }
    RAW.parent.mkdir(parents=True, exist_ok=True)
    RAW.write_text(json.dumps(raw, indent=1) + "\n")
    _plot(found)


def section() -> list[str]:
    """Lines of the page; none without a run."""
    if not RAW.exists():
        return []
    raw = json.loads(RAW.read_text())
    columns = [f"top {top_k}, ms" for top_k in raw["milliseconds"]]
    rows = zip(raw["contexts"], *raw["milliseconds"].values(), strict=True)
    return [
        "",
        f"## Decode against context, {raw['date']}",
        "",
        f"Measured with `./tools/dev bench -- m3-context`: a small model of {len(_SPEC.moe_layers)}"
        f" layers that all select blocks of {_SPEC.block_size} tokens, float32, one request; the "
        f"median of {_STEPS} steps. Keys and values are read of the selected blocks alone; of all "
        "blocks the indexer reads its own key, one narrow row for each token.",
        "",
        *(f"- {name}: {value}" for name, value in raw["machine"].items()),
        "",
        f"![Decode step against context](img/{PLOT.name})",
        "",
        f"| context | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
        *(
            f"| {context:,} | " + " | ".join(f"{value:.2f}" for value in values) + " |"
            for context, *values in rows
        ),
    ]


def _plot(found: dict[int, list[float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 4))
    for top_k, values in found.items():
        axis.plot(CONTEXTS, values, marker="o", label=f"top {top_k} blocks of {_SPEC.block_size}")
    axis.set_xscale("log", base=2)
    axis.set_xticks(CONTEXTS, [f"{one // 1024}k" for one in CONTEXTS])
    axis.set_ylim(bottom=0)
    axis.set_xlabel("context, tokens")
    axis.set_ylabel("decode step, ms")
    axis.legend()
    figure.tight_layout()
    figure.savefig(PLOT, dpi=110)
    plt.close(figure)
