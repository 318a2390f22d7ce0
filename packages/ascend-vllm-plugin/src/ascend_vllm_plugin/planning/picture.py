"""A plan as a picture: one bar, the memory of a card, as SVG or PNG."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.planning.plan import Plan, gib
from ascend_vllm_plugin.planning.report import Segment, segments

COLOURS = {
    "weights": ("#1f4e79", "#2e75b6", "#5b9bd5", "#9dc3e6"),
    "estimate": ("#bf8f00", "#ffc000", "#ffd966"),
    "caches": ("#548235", "#a9d18e"),
    "free": ("#e2efda",),
    "reserved": ("#d0cece",),
}
_WIDTH, _BAR, _LEFT, _TOP, _LINE = 960, 60, 20, 64, 22


def draw(plan: Plan, file: Path) -> None:
    """Write the picture of a plan.

    Raises:
        InvalidInputError: neither ``.svg`` nor ``.png``, a PNG without matplotlib, or a folder
            that does not exist.
    """
    if file.suffix not in (".svg", ".png"):
        raise InvalidInputError(
            f"picture {file.name!r}", "pictures are .svg or .png", "Name a file with one of these."
        )
    if not file.parent.is_dir():
        raise InvalidInputError(
            f"picture {file}", f"there is no folder {file.parent}", "Make it, or name another."
        )
    if file.suffix == ".svg":
        file.write_text(svg(plan), encoding="utf-8")
    else:
        _png(plan, file)


def svg(plan: Plan) -> str:
    """The picture as SVG text."""
    coloured = _coloured(segments(plan))
    whole = max(plan.memory_bytes.bytes, sum(segment.bytes for segment, _ in coloured))
    scale = (_WIDTH - 2 * _LEFT) / whole
    height = _TOP + _BAR + 24 + _LINE * len(coloured)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="14">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="26" font-size="17">{escape(title(plan))}</text>',
        f'<text x="{_LEFT}" y="48" fill="#595959">{escape(subtitle(plan))}</text>',
    ]
    left = float(_LEFT)
    for segment, colour in coloured:
        width = segment.bytes * scale
        lines.append(
            f'<rect x="{left:.2f}" y="{_TOP}" width="{width:.2f}" height="{_BAR}" fill="{colour}">'
            f"<title>{escape(f'{segment.name}: {gib(segment.bytes)}')}</title></rect>"
        )
        left += width
    # Where the card ends; what lies beyond it does not fit.
    end = _LEFT + plan.memory_bytes.bytes * scale
    lines.append(
        f'<line x1="{end:.2f}" x2="{end:.2f}" y1="{_TOP - 6}" y2="{_TOP + _BAR + 6}" '
        'stroke="#c00000" stroke-width="2"/>'
    )
    for row, (segment, colour) in enumerate(coloured):
        y = _TOP + _BAR + 24 + _LINE * row
        text = escape(f"{segment.name}: {gib(segment.bytes)}")
        lines.append(f'<rect x="{_LEFT}" y="{y - 11}" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{_LEFT + 20}" y="{y}">{text}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def title(plan: Plan) -> str:
    """What is planned."""
    layout = plan.request.layout
    verdict = "fits" if plan.fits else "does not fit"
    return (
        f"{plan.source.path.name} on {layout.cards} x {plan.request.device}, "
        f"{plan.request.concurrency} request(s) of {plan.max_model_len} tokens: {verdict}"
    )


def subtitle(plan: Plan) -> str:
    """What the figures are worth."""
    return (
        f"fullest card, {gib(plan.memory_bytes.bytes)} (red line); weights and caches computed, "
        "the rest estimated; not run on hardware"
    )


def _coloured(parts: list[Segment]) -> list[tuple[Segment, str]]:
    seen: dict[str, int] = {}
    found = []
    for segment in parts:
        colours = COLOURS[segment.kind]
        index = seen.get(segment.kind, 0)
        seen[segment.kind] = index + 1
        found.append((segment, colours[index % len(colours)]))
    return found


def _png(plan: Plan, file: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidInputError(
            f"picture {file.name!r}",
            "a PNG needs matplotlib, which is not installed",
            "pip install matplotlib, or name a .svg file.",
        ) from error
    figure = Figure(figsize=(10, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    left = 0.0
    for segment, colour in _coloured(segments(plan)):
        size = segment.bytes / 1024**3
        label = f"{segment.name}: {gib(segment.bytes)}"
        axes.barh(0, size, left=left, height=0.5, color=colour, label=label)
        left += size
    axes.axvline(plan.memory_bytes.bytes / 1024**3, color="#c00000")
    axes.set_title(title(plan), loc="left", fontsize=11)
    axes.set_xlabel(f"GiB; {subtitle(plan)}", fontsize=8)
    axes.set_yticks([])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncol=3, fontsize=8, frameon=False)
    figure.savefig(file, dpi=120)
