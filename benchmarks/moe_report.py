"""Page and plot of the experts' benchmark, from the newest run of every class of CPU."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.moe import HIDDEN, INTER, OURS, PEERS, Cell

_ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PAGE = _ROOT / "docs" / "moe-benchmarks.md"
PLOT = _ROOT / "docs" / "img" / "benchmark-moe.png"

# Up to here reading the weights is what takes the time.
_DECODE_TOKENS = 8
_BOUND_TARGET = 1.5


def write(capability: str, facts: dict[str, str], cells: list[Cell]) -> Path:
    """Write the raw numbers of a run, then page and plot of all runs.

    Returns:
        The file with the raw numbers.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"moe-{capability.lower()}.json"
    raw = {
        "date": datetime.date.today().isoformat(),
        "capability": capability,
        "machine": facts,
        "cells": [cell.to_json() for cell in cells],
    }
    file.write_text(json.dumps(raw, indent=1) + "\n")
    render()
    return file


def render() -> None:
    """Page and plot from the files with raw numbers."""
    runs = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("moe-*.json"))]
    lines = [
        "# Routed experts on a CPU against transformers and vLLM",
        "",
        f"Measured with `./tools/dev bench -- moe`: hidden {HIDDEN}, intermediate {INTER}, the "
        "same weights, tokens and routing for all peers, in one process and in turn; other "
        "experts in every round, and other data in the CPU's caches before every call; median of "
        "the rounds, in milliseconds. The peers are transformers' `Qwen3MoeExperts` (eager and "
        "`grouped_mm`) and vLLM's `CPUFusedMOE`, whose packing of the weights when a layer is "
        "made is not counted, nor is the move of the weights to huge pages, which our layers make "
        "when they have loaded and of which transformers' experts have the good here. Outputs are "
        "compared before a cell is measured. Ratios are what counts; absolute numbers move with "
        "the machine. `--isa avx2` holds all peers of a wider CPU to AVX2.",
        "",
        f"![Ahead of the fastest peer](img/{PLOT.name})",
        "",
        "*Ahead* is the fastest peer's time over ours; below 1 we are behind. The bandwidth bound "
        "is reading the weights of the visited experts once at the measured bandwidth; decode, "
        f"with up to {_DECODE_TOKENS} tokens, should stay within {_BOUND_TARGET} of it. *Reading* "
        "is what it took to read the same weights once and do nothing with them, by as many "
        "threads, in turn with the peers: threads that sleep wake up in it as well, which one "
        "large array does not show.",
    ]
    for run in runs:
        lines += _section(run)
    PAGE.write_text("\n".join(lines) + "\n")
    _plot(runs)


def ahead(cell: Cell) -> float:
    """The fastest peer's median over ours."""
    return min(_ms(cell, name) for name in cell.seconds if name != OURS) / _ms(cell, OURS)


def _ms(cell: Cell, peer: str) -> float:
    return median(cell.seconds[peer]) * 1e3


def _section(run: dict[str, Any]) -> list[str]:
    facts, cells = run["machine"], [Cell(**cell) for cell in run["cells"]]
    bandwidth = float(facts["read bandwidth"].split()[0])

    def bound(cell: Cell) -> float:
        return _ms(cell, OURS) / (cell.weight_bytes / bandwidth / 1e6)

    def reading(cell: Cell) -> str:
        if not cell.reading:
            return "- | -"
        once = median(cell.reading) * 1e3
        return f"{once:.2f} | {_ms(cell, OURS) / once:.2f}"

    decode = [cell for cell in cells if cell.tokens <= _DECODE_TOKENS]
    behind = sum(ahead(cell) < 1 for cell in cells)
    over = sum(bound(cell) > _BOUND_TARGET for cell in decode)
    near = [
        _ms(cell, OURS) <= _BOUND_TARGET * median(cell.reading) * 1e3
        for cell in decode
        if cell.reading
    ]
    of_reading = f", and of reading in {sum(near)} of {len(near)}" if near else ""
    refused = {(peer, why) for cell in cells for peer, why in cell.refused.items()}
    return [
        "",
        f"## {run['capability']}, {run['date']}",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        *(f"- {peer} does not run: {why}" for peer, why in sorted(refused)),
        "",
        f"Ahead of every peer in {len(cells) - behind} of {len(cells)} cells; decode within "
        f"{_BOUND_TARGET} of the bandwidth bound in {len(decode) - over} of {len(decode)}"
        f"{of_reading}.",
        "",
        f"| dtype | experts | top | tokens | {' | '.join(PEERS)} | ahead | times the bound "
        "| reading | times reading | largest difference |",
        "|" + "---|" * (9 + len(PEERS)),
        *(
            f"| {cell.dtype} | {cell.experts} | {cell.top_k} | {cell.tokens} | "
            + " | ".join(f"{_ms(cell, p):.2f}" if p in cell.seconds else "-" for p in PEERS)
            + f" | **{ahead(cell):.2f}x** | {bound(cell):.2f} | {reading(cell)} "
            f"| {max(cell.errors.values()):.0e} |"
            for cell in cells
        ),
        "",
        f"Raw seconds of every round are in `benchmarks/results/moe-{run['capability'].lower()}"
        ".json`.",
    ]


def _plot(runs: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(runs), 1, figsize=(11, 3.4 * len(runs)), squeeze=False)
    for axis, run in zip(axes[:, 0], runs, strict=True):
        cells = [Cell(**cell) for cell in run["cells"]]
        values = [ahead(cell) for cell in cells]
        colours = ["tab:blue" if value >= 1 else "tab:red" for value in values]
        bars = axis.bar(range(len(cells)), values, color=colours)
        axis.bar_label(bars, fmt="%.2f", fontsize=6)
        axis.axhline(1, color="black", linewidth=0.8)
        names = [
            f"{'f32' if c.dtype == 'float32' else 'bf16'}\n{c.experts}/{c.top_k}\n{c.tokens}"
            for c in cells
        ]
        axis.set_xticks(range(len(cells)), names, fontsize=6)
        axis.set_title(f"{run['capability']}: fastest peer's time over ours", fontsize=9)
    axes[-1, 0].set_xlabel("dtype, experts / top, tokens", fontsize=8)
    figure.tight_layout()
    figure.savefig(PLOT, dpi=110)
    plt.close(figure)
