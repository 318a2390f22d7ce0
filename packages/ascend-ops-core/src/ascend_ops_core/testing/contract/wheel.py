"""The files of a torch_npu wheel, wherever they lie."""

from __future__ import annotations

import importlib.metadata
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ascend_ops_core.errors import InvalidInputError

SUPPORTED_WHEELS = ("2.10.0.post4", "2.12.0", "2.13.0", "2.14.0")
"""Versions of torch_npu against which every call is checked, oldest first."""

WHEEL_VARIABLE = "ASCEND_TORCH_NPU_WHEEL"
"""Environment variable naming the wheel that is used when none is given."""

SCHEMAS = "csrc/aten/npu_native_functions_by_codegen.yaml"
METAS = ("op_plugin/meta/_meta_registrations.py", "op_plugin/meta/_fake_registrations.py")
DOCUMENTATION = "_op_plugin_docs.py"
ACL_HEADER = "include/third_party/acl/inc/acl/acl_base_rt.h"
VERSION = "version.py"

NEEDED_FILES = (SCHEMAS, *METAS, DOCUMENTATION, ACL_HEADER, VERSION)
"""All that contract mode and the references read, relative to the folder ``torch_npu``."""


@dataclass(frozen=True)
class WheelFiles:
    """Readable files of one torch_npu.

    Attributes:
        origin: where they come from, for messages.
        version: what ``torch_npu.__version__`` would be.
        read: text of a file by its path relative to the folder ``torch_npu``; raises
            :class:`InvalidInputError` if it is absent.
    """

    origin: str
    version: str
    read: Callable[[str], str]


def open_wheel(wheel: str | os.PathLike[str] | None = None) -> WheelFiles:
    """Find a torch_npu and return its files.

    Args:
        wheel: a ``.whl`` file, or a folder that is or contains the folder ``torch_npu``. None takes
            what the variable ``ASCEND_TORCH_NPU_WHEEL`` names, else the torch_npu installed in this
            environment, which is read but not imported.

    Raises:
        InvalidInputError: nothing is there, or it is not a torch_npu.
    """
    given = os.fspath(wheel) if wheel is not None else os.environ.get(WHEEL_VARIABLE)
    if given is None:
        return _from_folder(_installed_folder())
    path = Path(given)
    if path.is_dir():
        return _from_folder(path / "torch_npu" if (path / "torch_npu").is_dir() else path)
    if path.is_file() and zipfile.is_zipfile(path):
        return _from_archive(path)
    raise InvalidInputError(
        f"torch_npu wheel {given!r}",
        "a .whl file or a folder with the unpacked wheel is needed",
        f"Correct the path, or unset {WHEEL_VARIABLE}.",
    )


def _installed_folder() -> Path:
    try:
        distribution = importlib.metadata.distribution("torch_npu")
    except importlib.metadata.PackageNotFoundError as error:
        raise InvalidInputError(
            "torch_npu",
            "contract mode reads the files of a torch_npu wheel, and none is installed",
            f"Download one (pip download --no-deps torch-npu) and name it in {WHEEL_VARIABLE}.",
        ) from error
    return Path(str(distribution.locate_file("torch_npu")))


def _from_folder(folder: Path) -> WheelFiles:
    def read(name: str) -> str:
        try:
            return (folder / name).read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise _absent(str(folder), name) from error

    return WheelFiles(str(folder), _version(read(VERSION)), read)


def _from_archive(file: Path) -> WheelFiles:
    def read(name: str) -> str:
        with zipfile.ZipFile(file) as archive:
            try:
                return archive.read(f"torch_npu/{name}").decode("utf-8")
            except KeyError as error:
                raise _absent(str(file), name) from error

    return WheelFiles(str(file), _version(read(VERSION)), read)


def _version(text: str) -> str:
    found = re.search(r"__version__ = '([^']+)'", text)
    return found[1] if found else "unknown"


def _absent(origin: str, name: str) -> InvalidInputError:
    return InvalidInputError(
        f"torch_npu in {origin}",
        f"it has no file {name}",
        f"Use the wheel of a supported version: {', '.join(SUPPORTED_WHEELS)}.",
    )
