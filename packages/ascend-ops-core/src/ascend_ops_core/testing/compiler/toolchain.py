"""Finding the open part of the Ascend compiler, and what stands in for the closed part."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ascend_ops_core.errors import InvalidInputError

CACHE_VARIABLE = "ASCEND_COMPILE_CACHE"
"""Folder of results and stand-ins; ``ascend-ops/compile`` in the user's cache by default."""

# Both compilers end by calling the closed back end from PATH. The one for A2 and A3 asks for its
# version first and wants exactly this form.
_STAND_IN = """\
#!/bin/sh
# Stands in for Huawei's closed back end: hands the HIVM module on unchanged.
case "$1" in --version) echo "hivmc 1.2.0 (0000000 2026-01-01)"; exit 0 ;; esac
while [ $# -gt 0 ]; do
  case "$1" in
    -o) shift; to=$1 ;;
    -*) ;;
    *) from=${from:-$1} ;;
  esac
  shift
done
[ -z "$to" ] || cp "$from" "$to"
"""


@dataclass(frozen=True)
class Toolchain:
    """The compiler of this environment.

    Attributes:
        versions: its parts with their versions, as one line.
        programs: folder of bishengir's programs.
        stand_ins: folder of what stands in for the closed back end.
    """

    versions: str
    programs: Path
    stand_ins: Path


def cache_folder() -> Path:
    """Return the folder of cached results, which need not exist."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "ascend-ops" / "compile"


def missing() -> str:
    """Return why this environment cannot compile, or an empty string if it can."""
    try:
        for part in ("triton-ascend", "ascendnpu-ir", "pybind11"):
            importlib.metadata.version(part)
    except importlib.metadata.PackageNotFoundError as error:
        return f"{error.name} is not installed"
    try:
        stock = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "" if has_module() else "stock Triton was removed, and the shared module with it"
    return f"stock Triton {stock} is installed over the same module"


def has_module() -> bool:
    """Whether the module ``triton`` is whole: removing stock Triton takes files of both."""
    spec = importlib.util.find_spec("triton")
    return spec is not None and spec.origin is not None


@cache
def toolchain() -> Toolchain:
    """Return the compiler of this environment.

    Raises:
        InvalidInputError: it is not installed, or stock Triton took its place.
    """
    reason = missing()
    if reason:
        raise InvalidInputError(
            "this Python environment",
            f"compiling for Ascend needs triton-ascend and ascendnpu-ir, and {reason}",
            "Install the extra 'compile' in an environment of its own (Python 3.11, x86_64 or "
            "aarch64), then remove stock Triton and put triton-ascend back: "
            "pip install 'ascend-ops-core[compile]' && pip uninstall -y triton && "
            "pip install --force-reinstall --no-deps triton-ascend==3.2.0",
        )
    programs = importlib.metadata.distribution("ascendnpu-ir").locate_file("ascendnpuir/bin")
    version = importlib.metadata.version
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    versions = (
        f"triton-ascend {version('triton-ascend')}, ascendnpu-ir {version('ascendnpu-ir')}, "
        f"Python {python}"
    )
    return Toolchain(versions, Path(str(programs)), _stand_ins())


def _stand_ins() -> Path:
    folder = cache_folder() / "stand-ins"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("hivmc", "hivmc-a5"):
        program = folder / name
        if not program.exists() or program.read_text() != _STAND_IN:
            # Moved into place whole: another process may be running the one that is there.
            with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
                file.write(_STAND_IN)
            os.chmod(file.name, 0o755)
            os.replace(file.name, program)
    return folder
