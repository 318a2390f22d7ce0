"""Keeps numba's cache on disk honest when kernels call kernels of other files.

numba compiles a kernel anew when its own file changes, but its cached code holds the code of every
kernel that it calls, whatever file that one is from. So an upgrade of one package would leave the
old code in the kernels of those above it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType


def forget_stale(module: ModuleType) -> None:
    """Delete cached kernels that hold code of files which are others now.

    Args:
        module: a module of kernels, imported, of which none has been called yet. What it calls is
            looked after as well.
    """
    for one in _called(module):
        _forget(one, _called(one))


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
    file = _file(module)
    cache = file.parent / "__pycache__"
    stamp = cache / f"{file.stem}.kernels"
    now = "\n".join(sorted(_state(_file(one)) for one in sources))
    try:
        if stamp.exists() and stamp.read_text() == now:
            return
        for one in cache.glob(f"{file.stem}.*.nbi"):
            one.unlink(missing_ok=True)
        cache.mkdir(exist_ok=True)
        stamp.write_text(now)
    except OSError:
        # A folder that cannot be written holds no cache of numba's either.
        return


def _file(module: ModuleType) -> Path:
    assert module.__file__ is not None
    return Path(module.__file__)


def _state(file: Path) -> str:
    status = file.stat()
    return f"{file} {status.st_mtime_ns} {status.st_size}"
