"""The command ``ascend-ops``."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence

from ascend_ops_core import __version__
from ascend_ops_core.errors import InvalidInputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: without the program's name; those of the process by default.

    Returns:
        The exit status: 0 for success, 1 for a negative verdict, 2 for a wrong call.
    """
    options = parser().parse_args(arguments)
    try:
        status: int = options.func(options)
        sys.stdout.flush()
    except InvalidInputError as error:
        print(f"ascend-ops: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has what it wanted; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def parser() -> argparse.ArgumentParser:
    """The command line; every module in this package adds its own task."""
    top = argparse.ArgumentParser(
        prog="ascend-ops",
        description="Operators of the Ascend stack: what there is, what would run where, and "
        "whether a Triton kernel compiles for an NPU. Needs no NPU.",
    )
    top.add_argument("--version", action="version", version=f"ascend-ops-core {__version__}")
    tasks = top.add_subparsers(required=True, metavar="TASK")
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda one: one.name):
        importlib.import_module(f"{__name__}.{module.name}").add_to(tasks)
    return top
