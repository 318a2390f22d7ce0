"""The result page: table, ratios, bounds, raw numbers and a plot."""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from benchmarks import context
from benchmarks.memory import Peak
from benchmarks.models import MODELS, Model
from benchmarks.workload import Measurement, Workload

_ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PAGES = {
    "v4": _ROOT / "docs" / "benchmarks.md",
    "v32": _ROOT / "docs" / "v32-benchmarks.md",
    "m3": _ROOT / "docs" / "minimax-benchmarks.md",
    "kimi_linear": _ROOT / "docs" / "kimi-benchmarks.md",
    "qwen3_next": _ROOT / "docs" / "qwen3-next-benchmarks.md",
}


def plot_of(model: str) -> Path:
    """The picture of a model's page."""
    return _ROOT / "docs" / "img" / f"benchmark-{model}.png"


def prefill_rate(m: Measurement) -> float:
    """Prompt tokens per second, median of the repeats."""
    return m.workload.batch * m.workload.prompt / median(m.prefill_s)


def decode_rate(m: Measurement) -> float:
    """Generated tokens per second over the batch, median of the repeats."""
    return m.workload.batch * m.workload.decode / median(m.decode_s)


@dataclass
class Result:
    """One run of all peers.

    Attributes:
        facts: the machine.
        measurements: all cells.
        peaks: memory by dtype.
        profile: lines of the decode profile.
        date: day of the run.
        remark: what a reader must know about it, or nothing.
    """

    facts: dict[str, str]
    measurements: list[Measurement]
    peaks: list[Peak]
    profile: list[str]
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    remark: str = ""

    @property
    def model(self) -> str:
        """Key of the model that was measured."""
        return self.measurements[0].workload.model

    @property
    def capability(self) -> str:
        """Instruction set that torch used."""
        return self.measurements[0].capability

    @classmethod
    def read(cls, file: Path) -> Result:
        """A result that an earlier run left."""
        raw = json.loads(file.read_text())
        return cls(
            raw["machine"],
            [
                Measurement(**m | {"workload": Workload(**m["workload"])})
                for m in raw["measurements"]
            ],
            [Peak(**p) for p in raw["memory"]],
            raw["profile"],
            raw["date"],
            raw["remark"],
        )


def write(result: Result) -> Path:
    """Write the raw numbers, then the page and its plot of the newest run of every class of CPU.

    Returns:
        The file with the raw numbers.
    """
    raw = {
        "date": result.date,
        "remark": result.remark,
        "machine": result.facts,
        "measurements": [m.to_json() for m in result.measurements],
        "memory": [asdict(p) for p in result.peaks],
        "profile": result.profile,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"{result.model}-{result.capability.lower()}.json"
    file.write_text(json.dumps(raw, indent=1) + "\n")
    render(result.model)
    return file


def render(model: str) -> None:
    """Page and plot of a model from the files with raw numbers, newest first."""
    files = RESULTS.glob(f"{model}-*.json")
    results = sorted(map(Result.read, files), key=lambda r: r.date)[::-1]
    PAGES[model].write_text(_page(model, results))
    if results:
        _plot(_pair(results[0].measurements), plot_of(model))


def _pair(
    measurements: list[Measurement],
) -> dict[tuple[str, int], tuple[Measurement, Measurement]]:
    by_key = {(m.peer, m.workload.dtype, m.workload.batch): m for m in measurements}
    return {
        (dtype, batch): (m, by_key["ascend", dtype, batch])
        for (peer, dtype, batch), m in by_key.items()
        if peer == "transformers"
    }


def decode_bound(of: Model, dtype: str, batch: int, bandwidth: float) -> float:
    """Tokens/s if a step only read its weights once: all experts from batch 8 on."""
    size = 4 if dtype == "float32" else 2
    # With 16 experts and top 4, eight tokens hit 90 % of them; the bound takes all.
    parameters = of.active if batch == 1 else of.total
    return batch * bandwidth * 1e9 / (parameters * size)


def _page(model: str, results: list[Result]) -> str:
    of = MODELS[model]
    lines = [
        f"# {of.title} on a CPU against transformers",
        "",
        f"Measured with `./tools/dev bench -- {model}`: {of.total / 1e6:.0f}M parameters "
        f"({of.active / 1e6:.0f}M active), prompt 512, decode "
        f"64, both peers on the same threads in one run (transformers with {of.attention} "
        "attention), median of the repeats. Ratios are what "
        "counts; absolute numbers move with the machine. One section for each class of CPU; "
        "`--isa avx2` holds both peers of a wider CPU to AVX2.",
        "",
        f"![Decode and prefill rates](img/{plot_of(model).name})",
        "",
        "tokens/s in all tables. The bandwidth bound is reading every weight that a step needs "
        "once, at the measured bandwidth.",
    ]
    for result in results:
        lines += _section(result)
    lines += context.section(model)
    return "\n".join(lines) + "\n"


def _section(result: Result) -> list[str]:
    facts, cells, of = result.facts, _pair(result.measurements), MODELS[result.model]
    bandwidth = float(facts["read bandwidth"].split()[0])
    lines = [
        "",
        f"## {result.capability}, {result.date}",
        "",
        *([result.remark, ""] if result.remark else []),
        *(f"- {name}: {value}" for name, value in facts.items()),
        "",
        "| dtype | batch | transformers prefill | ours | ratio | transformers decode | ours "
        "| ratio | target prefill / decode | share of the bandwidth bound |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (dtype, batch), (peer, ours) in cells.items():
        bound = decode_bound(of, dtype, batch, bandwidth)
        target = of.targets[dtype, batch]
        lines.append(
            f"| {dtype} | {batch} | {prefill_rate(peer):.1f} | {prefill_rate(ours):.1f} "
            f"| **{prefill_rate(ours) / prefill_rate(peer):.2f}x** "
            f"| {decode_rate(peer):.1f} | {decode_rate(ours):.1f} "
            f"| **{decode_rate(ours) / decode_rate(peer):.2f}x** "
            f"| {target[0]}x / {target[1]}x | {decode_rate(ours) / bound:.0%} |"
        )
    if of.others:
        lines += _others(of, cells)
    lines += [
        "",
        "Memory:",
        "",
        "| dtype | engine without a model, MB | with it | weights + caches | ratio (at most 1.3) |",
        "|---|---|---|---|---|",
        *(
            f"| {p.dtype} | {p.empty_mb:.0f} | {p.loaded_mb:.0f} "
            f"| {p.weights_mb + p.caches_mb:.0f} | {p.ratio:.2f} |"
            for p in result.peaks
        ),
        "",
        f"Where a decode step goes: {result.measurements[0].workload.dtype}, batch 1, 64 steps "
        "under Python's profiler, whose own cost is included; times are cumulative, dots mark "
        "nesting.",
        "",
        "```",
        *result.profile,
        "```",
        "",
        "Raw seconds:",
        "",
        "| peer | dtype | batch | prefill | decode |",
        "|---|---|---|---|---|",
    ]
    for pair in cells.values():
        for m in pair:
            lines.append(
                f"| {m.peer} | {m.workload.dtype} | {m.workload.batch} "
                f"| {_seconds(m.prefill_s)} | {_seconds(m.decode_s)} |"
            )
    return lines


def _others(of: Model, cells: dict[tuple[str, int], tuple[Measurement, Measurement]]) -> list[str]:
    return [
        "",
        "The next rung is llama.cpp, whose figures are from another, quiet machine (two AVX2 "
        "cores without bfloat16 instructions), so only the order of magnitude compares:",
        "",
        "| dtype | batch | llama.cpp decode there | ours here |",
        "|---|---|---|---|",
        *(
            f"| {dtype} | {batch} | {of.others[dtype, batch]:.1f} | {decode_rate(ours):.1f} |"
            for (dtype, batch), (_, ours) in cells.items()
        ),
    ]


def _seconds(values: list[float]) -> str:
    return ", ".join(f"{v:.2f}" for v in values)


def _plot(cells: dict[tuple[str, int], tuple[Measurement, Measurement]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    names = [f"{dtype}\nbatch {batch}" for dtype, batch in cells]
    for axis, rate, title in zip(
        axes, (decode_rate, prefill_rate), ("decode", "prefill"), strict=True
    ):
        for shift, index, label in ((-0.2, 0, "transformers"), (0.2, 1, "ascend on vLLM")):
            values = [rate(pair[index]) for pair in cells.values()]
            bars = axis.bar([i + shift for i in range(len(names))], values, 0.4, label=label)
            axis.bar_label(bars, fmt="%.0f", fontsize=8)
        axis.set_xticks(range(len(names)), names, fontsize=8)
        axis.set_title(f"{title}, tokens/s")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
