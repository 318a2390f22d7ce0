"""The page about drafts: tokens/s, acceptance by position, and from which batch on they lose."""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.specdec import BATCHES, DECODE, NONE, PROMPT, Cell

_ROOT = Path(__file__).parents[1]
PAGE = _ROOT / "docs" / "speculation-benchmarks.md"
PLOT = _ROOT / "docs" / "img" / "benchmark-speculation.png"
RESULTS = Path(__file__).parent / "results"


def write(capability: str, facts: dict[str, str], cells: list[Cell]) -> Path:
    """Write raw numbers, page and plot; returns the file with the raw numbers."""
    date = datetime.date.today().isoformat()
    raw = {"date": date, "machine": facts, "cells": [asdict(cell) for cell in cells]}
    file = RESULTS / f"speculation-{capability.lower()}.json"
    file.write_text(json.dumps(raw, indent=1) + "\n")
    PAGE.write_text(_page(date, facts, cells))
    _plot(cells)
    return file


def ahead(cells: list[Cell], cell: Cell) -> float:
    """Tokens/s over those without speculation at the same batch."""
    alone = next(c for c in cells if (c.target, c.batch, c.way) == (cell.target, cell.batch, NONE))
    return cell.rate / alone.rate


def break_even(cells: list[Cell], target: str, way: str) -> str:
    """The first batch at which a way is not faster any more."""
    for cell in cells:
        if (cell.target, cell.way) == (target, way) and ahead(cells, cell) <= 1:
            return str(cell.batch)
    return f"above {BATCHES[target][-1]}"


def _page(date: str, facts: dict[str, str], cells: list[Cell]) -> str:
    lines = [
        "# Drafts on a CPU: speed and acceptance",
        "",
        "Measured with `./tools/dev bench -- specdec`: the trained tiny Llama and Qwen3 (about a "
        "million parameters) and the demo's DeepSeek-V4 (3.3 million), in float32 on held-out "
        f"stories, prompts of {PROMPT} tokens, {DECODE} greedy tokens behind the first, all ways "
        "in one run, median of the repeats. Texts are "
        "compared with those without drafts before anything is written. A step of so small a "
        "model is mostly the engine's own work, which drafts save; figures of large models on "
        "an NPU are not implied, and nothing here has been run on one.",
        "",
        f"![Speed over no speculation by batch](img/{PLOT.name})",
        "",
        *(f"- {name}: {value}" for name, value in {"date": date, **facts}.items()),
    ]
    for target in dict.fromkeys(cell.target for cell in cells):
        own = [cell for cell in cells if cell.target == target]
        ways = list(dict.fromkeys(cell.way for cell in own))
        lines += [
            "",
            f"## {target}",
            "",
            "tokens/s, and in brackets how many times those without speculation:",
            "",
            f"| batch | {' | '.join(ways)} |",
            "|---|" + "---|" * len(ways),
        ]
        for batch in BATCHES[target]:
            row = {c.way: c for c in own if c.batch == batch}
            shown = [
                f"{row[w].rate:.0f}" + ("" if w == NONE else f" ({ahead(cells, row[w]):.2f}x)")
                for w in ways
            ]
            lines.append(f"| {batch} | {' | '.join(shown)} |")
        lines += ["", _fastest(cells, own)]
        lines += [
            "",
            "Share of drafts whose first, second... token was accepted, over all batches, tokens "
            "of a step (the bonus token included), and the batch from which on a way is not "
            "faster:",
            "",
            "| way | by position | tokens a step | break-even batch |",
            "|---|---|---|---|",
        ]
        for way in ways[1:]:
            mine = [cell for cell in own if cell.way == way]
            drafts = sum(cell.drafts for cell in mine)
            right = [sum(places) for places in zip(*(cell.right for cell in mine), strict=True)]
            shares = [one / drafts for one in right]
            lines.append(
                f"| {way} | {', '.join(f'{s:.2f}' for s in shares)} | {1 + sum(shares):.2f} "
                f"| {break_even(cells, target, way)} |"
            )
    return "\n".join(lines) + "\n"


def _fastest(cells: list[Cell], own: list[Cell]) -> str:
    """Which ways gain anything for a single request, the fastest first."""
    gains = {c.way: ahead(cells, c) for c in own if c.batch == 1 and c.way != NONE}
    better = sorted((way for way in gains if gains[way] > 1), key=gains.__getitem__, reverse=True)
    shown = ", ".join(f"{way} ({gains[way]:.2f}x)" for way in better)
    return f"Faster than no speculation at batch 1: {shown or 'none'}."


def _plot(cells: list[Cell]) -> None:
    """A panel for each target; a method has one colour and marker, its widths other lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    targets = list(dict.fromkeys(cell.target for cell in cells))
    ways = list(dict.fromkeys(cell.way for cell in cells if cell.way != NONE))
    methods = list(dict.fromkeys(way.split()[0] for way in ways))
    size = (8, 3.4 * len(targets))
    figure, axes = plt.subplots(len(targets), 1, figsize=size, squeeze=False)
    for axis, target in zip(axes[:, 0], targets, strict=True):
        own = [cell for cell in cells if cell.target == target]
        drawn: dict[str, int] = {}
        for way in (one for one in ways if any(cell.way == one for cell in own)):
            method = way.split()[0]
            number = methods.index(method)
            line = [cell for cell in own if cell.way == way]
            axis.plot(
                [c.batch for c in line],
                [ahead(cells, c) for c in line],
                color=f"C{number}",
                marker="osD^vPX"[number % 7],
                linestyle=("-", "--", ":")[drawn.get(method, 0) % 3],
                markersize=4,
                label=f"{way} (break-even: {break_even(cells, target, way)})",
            )
            drawn[method] = drawn.get(method, 0) + 1
        axis.axhline(1, color="black", linewidth=1)
        axis.set_xscale("log", base=2)
        axis.set_xticks(BATCHES[target], [str(b) for b in BATCHES[target]])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.set_ylabel("times no speculation")
        axis.set_title(f"{target}: tokens/s over those without speculation")
        axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    axes[-1, 0].set_xlabel("batch")
    figure.tight_layout()
    figure.savefig(PLOT, dpi=110)
    plt.close(figure)
