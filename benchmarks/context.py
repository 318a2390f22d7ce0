"""Time of a decode step against the length of the context."""

from __future__ import annotations

import datetime
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import peer_ours
from benchmarks.models import KIMI_LINEAR, M3, M3_SETTINGS, MODELS, QWEN3_NEXT

_ROOT = Path(__file__).parents[1]

CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
_STEPS = 64
_LONGEST = CONTEXTS[-1] + 128
WHOLE = "whole step"


@dataclass(frozen=True)
class Study:
    """A small model whose attention takes most of a step's time.

    Attributes:
        shapes: by what tells them from each other.
        said: of the model and of what its lines show.
        parts: classes of layers, by the name of a line; its time is that of all of them.
        settings: further arguments of our engine.
        sizes: of every shape what a second picture has along its axis, if there is one.
        sized: what the sizes are.
        smallest: context from which on all sizes differ, in tokens.
    """

    shapes: Mapping[str, Any]
    said: str
    parts: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    sized: str = ""
    smallest: int = 0

    def line(self, label: str, part: str) -> str:
        """Name of a part's line in a shape."""
        return part if len(self.shapes) == 1 else f"{label}, {part}"

    @property
    def lines(self) -> list[str]:
        """Of the plot, and columns of the table."""
        parts = [self.line(label, part) for label in self.shapes for part in self.parts]
        return [*self.shapes, *parts]


_M3_TOPS = {f"top {top_k}": top_k for top_k in (4, 16)}
_M3_PAGE = 128


def _m3(top_k: int) -> Any:
    return replace(
        M3,
        vocab_size=512,
        hidden_size=256,
        intermediate_size=128,
        dense_intermediate_size=512,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        block_size=_M3_PAGE,
        topk_blocks=top_k,
        sparse_layers=(1, 1, 1, 1),
        moe_layers=(0, 0, 0, 1),
        max_position_embeddings=_LONGEST,
    )


_SHARED = "lines of layers show the time of their calls in these steps."

STUDIES = {
    "m3": Study(
        {label: _m3(top_k) for label, top_k in _M3_TOPS.items()},
        "a small model of 4 layers that all select blocks of 128 tokens, float32, one request; "
        f"the median of {_STEPS} steps. Keys and values are read of the selected blocks alone, so "
        "a step costs what is selected. Of all blocks the indexer reads its own key, one narrow "
        "row for each token: that is what grows with the context, and the lines of the indexer "
        "show its calls in these steps.",
        {"indexer": "AscendMiniMaxM3Indexer"},
        settings=M3_SETTINGS,
        sizes=_M3_TOPS,
        sized="blocks that a query attends to",
        smallest=_M3_PAGE * max(_M3_TOPS.values()),
    ),
    "kimi_linear": Study(
        {
            WHOLE: replace(
                KIMI_LINEAR,
                vocab_size=512,
                hidden_size=256,
                intermediate_size=512,
                moe_intermediate_size=128,
                num_hidden_layers=4,
                num_experts=4,
                num_experts_per_token=2,
                kda_layers=(1, 2, 3),
                model_max_length=_LONGEST,
            )
        },
        "a small model of 3 layers with Kimi delta attention and one with latent attention, "
        f"float32, one request; the median of {_STEPS} steps; " + _SHARED,
        {"3 layers of KDA": "KimiDeltaAttention", "1 layer of MLA": "AscendKimiMLAAttention"},
    ),
    "qwen3_next": Study(
        {
            WHOLE: replace(
                QWEN3_NEXT,
                vocab_size=512,
                given=QWEN3_NEXT.given
                | {
                    "hidden_size": 256,
                    "intermediate_size": 512,
                    "moe_intermediate_size": 128,
                    "shared_expert_intermediate_size": 128,
                    "num_hidden_layers": 4,
                    "num_experts": 4,
                    "num_experts_per_tok": 2,
                    "max_position_embeddings": _LONGEST,
                },
            )
        },
        "a small model of 3 layers with Gated DeltaNet and one with full attention (vLLM's own on "
        f"a CPU), float32, one request; the median of {_STEPS} steps; " + _SHARED,
        {
            "3 layers of Gated DeltaNet": "AscendGatedDeltaNetAttention",
            "1 layer of attention": "Qwen3NextAttention",
        },
    ),
}
"""By key of :data:`benchmarks.models.MODELS`."""


def raw_of(model: str) -> Path:
    """The raw numbers of a model."""
    return Path(__file__).parent / "results" / f"context-{model}.json"


def plot_of(model: str) -> Path:
    """The picture of a model."""
    return _ROOT / "docs" / "img" / f"benchmark-{model}-context.png"


def measure(model: str, report: Callable[[str], Any]) -> dict[str, list[float]]:
    """Milliseconds of a decode step at each context, by line."""
    study = STUDIES[model]
    found: dict[str, list[float]] = {line: [] for line in study.lines}
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        for label, shape in study.shapes.items():
            checkpoint = MODELS[model].write(shape, Path(folder) / label.replace(" ", "-"))
            llm = peer_ours.engine(
                checkpoint,
                "float32",
                max_model_len=_LONGEST,
                max_num_batched_tokens=2048,
                **study.settings,
            )
            # The first one loads every kernel.
            for i, context in enumerate((CONTEXTS[0], *CONTEXTS)):
                prompt = torch.randint(4, 490, (context,), generator=generator).tolist()
                with _clocks(llm, study.parts) as spent:
                    seconds = _steps(llm, prompt, f"{label}-{context}-{i}", label, spent)
                if i == 0:
                    continue
                for name, values in seconds.items():
                    line = name if name == label else study.line(label, name)
                    found[line].append(statistics.median(values) * 1e3)
                report(f"{label}, context {context}: {found[label][-1]:.2f} ms a step")
            llm.llm_engine.engine_core.shutdown()
    return found


def _steps(
    llm: Any, prompt: list[int], name: str, whole: str, spent: dict[str, float]
) -> dict[str, list[float]]:
    """Seconds of every decode step behind a prompt, and within it of the parts."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=_STEPS + 1, temperature=0, detokenize=False, ignore_eos=True)
    core = llm.llm_engine
    core.add_request(name, {"prompt_token_ids": prompt}, params)
    while not core.step():
        pass
    seconds: dict[str, list[float]] = {line: [] for line in (whole, *spent)}
    while core.has_unfinished_requests():
        spent.update(dict.fromkeys(spent, 0.0))
        start = time.perf_counter()
        core.step()
        seconds[whole].append(time.perf_counter() - start)
        for line, value in spent.items():
            seconds[line].append(value)
    return seconds


@contextmanager
def _clocks(llm: Any, parts: Mapping[str, str]) -> Iterator[dict[str, float]]:
    """Seconds of the layers' calls in steps of one token, by part."""
    spent = dict.fromkeys(parts, 0.0)
    core = llm.llm_engine.engine_core.engine_core
    model = core.model_executor.driver_worker.model_runner.get_model()
    handles = []
    for line, kind in parts.items():
        for layer in [one for one in model.modules() if type(one).__name__ == kind]:
            handles += _timed(layer, line, spent)
    try:
        yield spent
    finally:
        for handle in handles:
            handle.remove()


def _timed(layer: torch.nn.Module, line: str, spent: dict[str, float]) -> list[Any]:
    began = 0.0

    def before(module: Any, args: Any, kwargs: Any) -> None:
        nonlocal began
        began = time.perf_counter()

    def behind(module: Any, args: Any, kwargs: Any, out: torch.Tensor) -> None:
        if out.shape[0] == 1:
            spent[line] += time.perf_counter() - began

    return [
        layer.register_forward_pre_hook(before, with_kwargs=True),
        layer.register_forward_hook(behind, with_kwargs=True),
    ]


def write(model: str, facts: dict[str, str], found: dict[str, list[float]]) -> None:
    """Write the raw numbers and the plot; the page is rendered by :mod:`benchmarks.report`."""
    raw = {
        "date": datetime.date.today().isoformat(),
        "machine": facts,
        "contexts": CONTEXTS,
        "milliseconds": found,
    }
    raw_of(model).parent.mkdir(parents=True, exist_ok=True)
    raw_of(model).write_text(json.dumps(raw, indent=1) + "\n")
    _plot(model, found)


def section(model: str) -> list[str]:
    """Lines of the model's page; none without a run."""
    if model not in STUDIES or not raw_of(model).exists():
        return []
    raw = json.loads(raw_of(model).read_text())
    columns = [f"{line}, ms" for line in raw["milliseconds"]]
    rows = zip(raw["contexts"], *raw["milliseconds"].values(), strict=True)
    return [
        "",
        f"## Decode against context, {raw['date']}",
        "",
        f"Measured with `./tools/dev bench -- context {model}`: {STUDIES[model].said}",
        "",
        *(f"- {name}: {value}" for name, value in raw["machine"].items()),
        "",
        f"![Decode step against context](img/{plot_of(model).name})",
        "",
        f"| context | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
        *(
            f"| {context:,} | " + " | ".join(f"{value:.2f}" for value in values) + " |"
            for context, *values in rows
        ),
        *_growth(STUDIES[model], raw["milliseconds"]),
    ]


def _growth(study: Study, found: dict[str, list[float]]) -> list[str]:
    """How much of what a longer context costs lies in which part; nothing where parts share it."""
    lines = []
    for label in study.sizes:
        more = found[label][-1] - found[label][0]
        for part in study.parts:
            if own := found.get(study.line(label, part)):
                lines.append(
                    f"- {label}: from {CONTEXTS[0]:,} to {CONTEXTS[-1]:,} tokens a step takes "
                    f"{more:.2f} ms longer, the {part} {own[-1] - own[0]:.2f} ms."
                )
    return ["", *lines] if lines else []


def _plot(model: str, found: dict[str, list[float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    study = STUDIES[model]
    panels = 2 if study.sizes else 1
    figure, axes = plt.subplots(1, panels, figsize=(6 * panels, 4), squeeze=False, sharey=True)
    axis = axes[0, 0]
    for line, values in found.items():
        style = {} if line in study.shapes else {"linestyle": "--", "linewidth": 1}
        axis.plot(CONTEXTS, values, marker="o", label=line, **style)
    axis.set_xscale("log", base=2)
    axis.set_xticks(CONTEXTS, [f"{one // 1024}k" for one in CONTEXTS])
    axis.set_xlabel("context, tokens")
    axis.set_ylabel("decode step, ms")
    if study.sizes:
        _plot_sizes(axes[0, 1], study, found)
    for axis in axes[0]:
        axis.set_ylim(bottom=0)
        axis.legend()
    figure.tight_layout()
    figure.savefig(plot_of(model), dpi=110)
    plt.close(figure)


def _plot_sizes(axis: Any, study: Study, found: dict[str, list[float]]) -> None:
    sizes = list(study.sizes.values())
    for i, context in enumerate(CONTEXTS):
        if context >= study.smallest:
            values = [found[label][i] for label in study.sizes]
            axis.plot(sizes, values, marker="o", label=f"context {context // 1024}k")
    axis.set_xticks(sizes)
    axis.set_xlabel(study.sized)
