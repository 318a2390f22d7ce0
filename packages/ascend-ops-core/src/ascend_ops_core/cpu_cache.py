"""Keeps numba's cache on disk honest when kernels call kernels of other files.

numba compiles a kernel anew when its own file changes, but its cached code holds the code of every
kernel that it calls, whatever file that one is from. So an upgrade of one package would leave the
old code in the kernels of those above it.

Two remedies: :func:`forget_stale` looks after numba's own caches, and :class:`BySources` names a
cache after the sources, so that several environments share one.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from numba import config


def forget_stale(module: ModuleType) -> None:
    """Delete cached kernels that hold code of files which are others now.

    Args:
        module: a module of kernels, imported, of which none has been called yet. What it calls is
            looked after as well.
    """
    for one in _called(module):
        _forget(one, _called(one))


class BySources:
    """Where numba keeps the code of a kernel: in a folder for exactly these sources.

    Installations of the same sources then share what one of them has compiled, and a change of any
    kernel that is called leads to another folder. numba asks it when the environment says so::

        NUMBA_CACHE_DIR=/folder/of/the/caches
        NUMBA_CACHE_LOCATOR_CLASSES=ascend_ops_core.cpu_cache.BySources,UserProvidedCacheLocator

    Args:
        function: a kernel in a module of kernels.
        file: its source.
    """

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        # numba reads both when it warns of a kernel that cannot be cached.
        self._py_file = file
        self._lineno = function.__code__.co_firstlineno
        self._digest = _digest(function.__module__)
        self._folder = _folder_by_sources(function.__module__)

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> BySources | None:
        """None for functions of others, and where no folder is set or it cannot be written."""
        module = function.__module__ or ""
        if not config.CACHE_DIR or not module.startswith("ascend_") or module not in sys.modules:
            return None
        self = cls(function, file)
        try:
            self.ensure_cache_path()
        except OSError:
            return None
        return self

    def ensure_cache_path(self) -> None:
        """Make the folder. Raises OSError if it cannot be written."""
        self._folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=self._folder).close()

    def get_cache_path(self) -> str:
        """The folder."""
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """What a cached kernel must have been made from: a digest of all sources."""
        return self._digest

    def get_disambiguator(self) -> str:
        """Tells kernels of one name in a file apart."""
        return str(self._lineno)


def _folder_by_sources(name: str) -> Path:
    return Path(config.CACHE_DIR) / f"{name}-{_digest(name)[:16]}"


@cache
def _digest(name: str) -> str:
    """Of a module, whose imports are done, and of all modules of kernels that it imports from."""
    digest = hashlib.sha256()
    for module in sorted(_called(sys.modules[name]), key=lambda one: one.__name__):
        content = _file(module).read_bytes()
        digest.update(f"{module.__name__} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _called(module: ModuleType) -> list[ModuleType]:
    """The module and all modules of kernels that it imports from, directly or not."""
    found = {module.__name__: module}
    ahead = [module]
    while ahead:
        for value in vars(ahead.pop()).values():
            name = getattr(getattr(value, "py_func", value), "__module__", None) or ""
            if (
                name not in found
                and name.startswith("ascend_")
                and name.rpartition(".")[2].startswith("cpu")
                and name in sys.modules
            ):
                found[name] = sys.modules[name]
                ahead.append(found[name])
    return list(found.values())


def _forget(module: ModuleType, sources: list[ModuleType]) -> None:
    stem = _file(module).stem
    now = "\n".join(sorted(_state(_file(one)) for one in sources))
    for folder in _caches(module):
        stamp = folder / f"{stem}.kernels"
        try:
            if stamp.exists() and stamp.read_text() == now:
                continue
            for one in folder.glob(f"{stem}.*.nbi"):
                one.unlink(missing_ok=True)
            folder.mkdir(exist_ok=True)
            stamp.write_text(now)
        except OSError:
            # A folder that cannot be written holds no cache of numba's either.
            continue


def _caches(module: ModuleType) -> set[Path]:
    """Where numba keeps the module's own kernels, unless the place says what they hold."""
    paths = {
        one.stats.cache_path
        for one in vars(module).values()
        if getattr(getattr(one, "py_func", None), "__module__", None) == module.__name__
    }
    folders = {Path(path) for path in paths if path}
    return folders - {_folder_by_sources(module.__name__)} if config.CACHE_DIR else folders


def _file(module: ModuleType) -> Path:
    assert module.__file__ is not None
    return Path(module.__file__)


def _state(file: Path) -> str:
    status = file.stat()
    return f"{file} {status.st_mtime_ns} {status.st_size}"
