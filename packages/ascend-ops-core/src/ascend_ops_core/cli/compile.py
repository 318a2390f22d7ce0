"""``ascend-ops compile``: does a Triton kernel compile for an NPU, and does it fit?"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from ascend_ops_core.devices import COMPILED_FAMILIES
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.compiler import CompileReport, compile_kernel
from ascend_ops_core.testing.compiler.toolchain import toolchain


def add_to(subparsers: Any) -> None:
    """Add the task to the command line."""
    task: argparse.ArgumentParser = subparsers.add_parser(
        "compile",
        help="compile a Triton kernel for an NPU, without one",
        description="Compile a @triton.jit kernel with the open part of the Ascend compiler, up "
        "to the input of the closed back end, and show the unified buffer that it takes and "
        "static counts. Nothing runs. Exit status 1 if a device refuses it, or takes it only "
        "after switching optimisations off, or if it fills the buffer.",
    )
    task.add_argument("kernel", help="MODULE:KERNEL or FILE.py:KERNEL")
    task.add_argument(
        "--signature",
        nargs="+",
        default=[],
        metavar="NAME=TYPE",
        help="types of the run-time arguments: x_ptr=*bf16 n=i32 eps=fp32",
    )
    task.add_argument(
        "--constants",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="values of the constexpr arguments: BLOCK=1024 CAUSAL=True",
    )
    task.add_argument(
        "--options",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="options of triton-ascend: multibuffer=False",
    )
    task.add_argument(
        "--device",
        action="append",
        choices=COMPILED_FAMILIES,
        help="device family, may be repeated; all by default",
    )
    task.add_argument("--json", action="store_true", help="machine-readable")
    task.add_argument("--keep", type=Path, metavar="DIR", help="leave the modules in DIR/DEVICE")
    task.set_defaults(func=run)


def run(options: argparse.Namespace) -> int:
    """Compile what was asked for and print the reports.

    Returns:
        0 if every device takes the kernel as it is, else 1.
    """
    toolchain()  # an environment without compiler is refused before the kernel is imported
    kernel = load_kernel(options.kernel)
    signature = _pairs("--signature", options.signature)
    constants = _values("--constants", options.constants)
    reports = [
        compile_kernel(
            kernel,
            signature,
            constants,
            family,
            options=_values("--options", options.options),
            keep=options.keep / family if options.keep else None,
        )
        for family in options.device or COMPILED_FAMILIES
    ]
    if options.json:
        print(json.dumps([report.to_json() for report in reports], indent=2))
    else:
        print(table(reports))
    return 0 if all(report.ok for report in reports) else 1


def table(reports: list[CompileReport]) -> str:
    """Return the reports as text, a column per device."""
    rows: list[list[str]] = [
        ["", *(report.family for report in reports)],
        ["verdict", *("ok" if report.ok else "FAILED" for report in reports)],
        ["stage", *(report.stage for report in reports)],
        ["cores", *(report.mix_mode or "-" for report in reports)],
        ["unified buffer", *(_buffer(report) for report in reports)],
    ]
    shown = (
        ("vector operations", "vector"),
        ("  weighted", "weighted_vector"),
        ("  A5 instructions", "vector_intrinsics"),
        ("cube operations", "cube"),
        ("bytes from memory", "weighted_gm_load_bytes"),
        ("bytes to memory", "weighted_gm_store_bytes"),
        ("flags", "flags"),
        ("barriers", "barriers"),
        ("core synchronisations", "block_syncs"),
        ("scalar accesses", "weighted_scalar"),
        ("loops of unknown length", "loops_of_unknown_length"),
    )
    for title, name in shown:
        values = [f"{getattr(one.counts, name):,}" if one.counts else "-" for one in reports]
        rows.append([title, *values])
    widths = [max(len(row[i]) for row in rows) for i in range(len(reports) + 1)]
    lines = [f"{reports[0].kernel}, compiled with {toolchain().versions}"]
    for title, *cells in rows:
        shifted = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([title.ljust(widths[0]), *shifted]).rstrip())
    for report in reports:
        if report.problem:
            lines += ["", f"{report.family}: {report.problem}"]
            lines += [f"    {line}" for line in report.error.splitlines()[1:]]
    lines += ["", "Weighted by loops of known length. Static: nothing ran on a device."]
    return "\n".join(lines)


def load_kernel(spec: str) -> Any:
    """Return the kernel that ``MODULE:KERNEL`` or ``FILE.py:KERNEL`` names.

    Raises:
        InvalidInputError: there is no such file, module or kernel.
    """
    place, colon, name = spec.rpartition(":")
    remedy = "Write MODULE:KERNEL or FILE.py:KERNEL."
    if not colon or not place or not name:
        raise InvalidInputError(f"kernel {spec!r}", "it names a module and a kernel", remedy)
    if place.endswith(".py"):
        module = _from_file(Path(place), remedy)
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise InvalidInputError(f"module {place!r}", f"{error}", remedy) from error
    if not hasattr(module, name):
        raise InvalidInputError(f"kernel {name!r}", f"{place} has no such name", remedy)
    return getattr(module, name)


def _from_file(file: Path, remedy: str) -> Any:
    if not file.exists():
        raise InvalidInputError(f"file {str(file)!r}", "it does not exist", remedy)
    name = file.stem
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its neighbours are found as if Python had been started with the file.
    sys.path.insert(0, str(file.resolve().parent))
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _buffer(report: CompileReport) -> str:
    if report.ub_bits is None:
        return "-"
    return f"{report.ub_bits // 8:,} B ({report.ub_share:.1%})"


def _pairs(option: str, words: list[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier() or not value:
            raise InvalidInputError(
                f"{option} {word!r}", "each is NAME=VALUE", "Quote it if the shell changes it."
            )
        pairs[name] = value
    return pairs


def _values(option: str, words: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in _pairs(option, words).items():
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = text
    return values
