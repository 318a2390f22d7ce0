"""`ascend-vllm ops`: what every operator would run as on each device family, and why.

The answers are those of `ascend-ops list`, asked for as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ascend_vllm_plugin.cli.torch_autoload import switch_autoload_off

NOT_RUN = "NPU implementations were not run on hardware."
_NONE = "none"


def ops(
    operator: Annotated[
        str | None,
        typer.Argument(help="One operator, as package::name or a name of ascend_ops_core."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Only this device family: A2, A3, A5 or 310P.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: every input, choice and reason.")
    ] = False,
) -> None:
    """Show what each operator would run as on each device family, and why not as another.

    Every operator has named inputs (its cases). The table counts what they would run as:
    torch_npu (Huawei's fused operators), triton (kernels of this project) or torch (the
    definition). Below it stands each reason for which a preferred implementation is refused. No
    NPU is needed; all operators take up to a minute, one of them a second.
    """
    switch_autoload_off()
    logging.getLogger("ascend_ops_core").setLevel(logging.ERROR)  # the reasons are shown below
    chosen = [] if device is None else ["--device", device]
    names = [row["operator"] for row in _listing()] if operator is None else [operator]
    found = [_listing(name, *chosen) for name in names]
    if as_json:
        typer.echo(json.dumps(found if operator is None else found[0], indent=2))
        return
    console = Console()
    console.print(_table(found), soft_wrap=False)
    for row in found:
        for line in _reasons(row):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"\n{len(found)} operator(s). {NOT_RUN}")


def _listing(*arguments: str) -> Any:
    """The answer of `ascend-ops list ARGUMENTS`."""
    from ascend_ops_core.cli import main as ascend_ops

    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            status = ascend_ops(["list", *arguments, "--json"])
    except SystemExit as error:
        raise typer.Exit(2) from error
    if status:
        raise typer.Exit(status)
    return json.loads(output.getvalue())


def _table(rows: list[dict[str, Any]]) -> Table:
    families = list(dict.fromkeys(choice["device"] for row in rows for choice in row["choices"]))
    table = Table("operator", *families, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        cells = []
        for family in families:
            counts = Counter(
                choice["implementation"] or _NONE
                for choice in row["choices"]
                if choice["device"] == family
            )
            cells.append(", ".join(f"{name} {count}" for name, count in counts.most_common()))
        table.add_row(escape(row["operator"]), *cells)
    return table


def _reasons(row: dict[str, Any]) -> Iterator[str]:
    refused: dict[tuple[str, str], list[str]] = {}
    for choice in row["choices"]:
        for name, why in choice["refused"].items():
            refused.setdefault((name, why), []).append(choice["device"])
    if refused:
        yield f"\n{row['operator']}"
    for (name, why), devices in refused.items():
        where = ", ".join(f"{device} x{count}" for device, count in Counter(devices).items())
        yield f"  not {name} on {where}: {why}" if name != "all" else f"  {where}: {why}"
