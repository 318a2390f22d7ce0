"""Running code in a fresh interpreter in which chosen packages do not exist."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterable

_HIDE = """
import sys

class Hiding:
    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            return None
        return self._finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self._finder, name)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""


def run_python(code: str, *, missing: Iterable[str] = ()) -> str:
    """Output of ``code`` in a new interpreter.

    Args:
        code: a program; it may be indented.
        missing: top-level packages that this interpreter does not find, as if they were not
            installed.

    Returns:
        What the program printed, stripped.

    Raises:
        AssertionError: the program failed; the message carries its standard error.
    """
    program = _HIDE.format(missing=sorted(missing)) + textwrap.dedent(code)
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
