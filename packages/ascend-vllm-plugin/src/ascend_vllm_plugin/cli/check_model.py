"""`ascend-vllm check-model`: whether a checkpoint fits its config, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ascend_vllm_plugin.cli.torch_autoload import switch_autoload_off

if TYPE_CHECKING:
    from ascend_vllm_plugin.planning.checkpoint import CheckpointReport


def check_model(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Checkpoint directory with its config.json.")
    ],
    speculative_config: Annotated[
        str | None,
        typer.Option(
            help="The engine's speculative_config, a JSON object: also check the draft that it "
            "names as model."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of lines.")
    ] = False,
) -> None:
    """Check a checkpoint: names, shapes and dtypes of its tensors against the model.

    Reads config.json, the index, the headers of the safetensors files and the description of the
    quantization, never a weight, so it takes seconds for any size. Every problem is listed at
    once, misspelt names with the closest right one. The exit code is 0 if the checkpoint can be
    served by this version, 1 if it cannot, 2 if there is no model to check.
    """
    switch_autoload_off()
    from ascend_ops_core.errors import InvalidInputError

    from ascend_vllm_plugin.planning.checkpoint import check_checkpoint
    from ascend_vllm_plugin.planning.drafts import Speculation

    try:
        given = speculative_config
        draft = None if given is None else Speculation.parse(given)
        report = check_checkpoint(directory, draft)
    except InvalidInputError as error:
        Console(stderr=True).print(
            f"error: {error}", markup=False, highlight=False, soft_wrap=True, style="red"
        )
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(_as_json(report), indent=2))
    else:
        _show(report, Console())
    raise typer.Exit(1 if report.problems else 0)


def _show(report: CheckpointReport, console: Console) -> None:
    stored = report.quantization or "in a format that is not known"
    size = f"{report.bytes / 1024**3:.2f} GiB"
    lines = [f"{report.directory}: {report.tensors} tensors, {size}, weights as {stored}"]
    lines += [f"problem  {line}" for line in report.problems]
    lines += [f"note     {line}" for line in report.notes]
    if report.problems:
        lines.append(f"{len(report.problems)} problem(s): this checkpoint cannot be served.")
    else:
        lines.append("No problem: every tensor fits the model.")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _as_json(report: CheckpointReport) -> dict[str, object]:
    return {
        "directory": str(report.directory),
        "tensors": report.tensors,
        "bytes": report.bytes,
        "quantization": report.quantization,
        "fits": not report.problems,
        "problems": report.problems,
        "notes": report.notes,
    }
