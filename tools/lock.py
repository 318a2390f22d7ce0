#!/usr/bin/env python3
"""Write `uv.lock` without any address in it, and the pins of the tools that `tools/dev` installs.

uv records the index and the full address of every file, so its lock is tied to the one index it was
made with; sites behind a mirror cannot use it. File names and hashes already say which files are
meant. This tool runs `uv lock` and then keeps only those.

Usage, through `./tools/dev lock`:
    lock              resolve what pyproject.toml files ask for, keeping pins that still fit
    lock --upgrade    resolve anew
    lock --check      change nothing; exit 1 unless the committed files are current
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "uv.lock"
TOOL_PINS = ROOT / "tools" / "requirements.txt"
REGISTRY = "pypi"

_SOURCE = re.compile(r'source = \{ registry = "[^"]*" \}')
_FILE_URL = re.compile(r'\burl = "(?P<url>[a-z]+://[^"]+)"')
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\"']+")

# Extra indexes and wheel folders hold only some files of a release: a lock made with them would
# lack the hashes of the others, and one made without them would not look current beside them.
_PARTIAL_INDEXES = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX_STRATEGY")


class LockError(Exception):
    """The lock cannot be made or is not current; the message says what to do."""


def normalise(lock_text: str) -> str:
    """Return `lock_text` with every registry named `pypi` and every file address cut to its name.

    Raises LockError when an address is left, since the file could then not be used elsewhere.
    """
    text = _SOURCE.sub(f'source = {{ registry = "{REGISTRY}" }}', lock_text)
    text = _FILE_URL.sub(lambda found: f'filename = "{_file_name(found["url"])}"', text)
    left = addresses(text)
    if left:
        raise LockError(
            f"uv.lock would still name {left[0]!r} ({len(left)} addresses in all); depend on "
            "released packages only, or teach tools/lock.py this form"
        )
    return text


def addresses(text: str) -> list[str]:
    """Return every address with a scheme that `text` contains."""
    return _ADDRESS.findall(text)


def write(upgrade: bool) -> list[Path]:
    """Resolve, write both files, and return those that changed."""
    before = {path: path.read_text() if path.exists() else None for path in (LOCK, TOOL_PINS)}
    resolve("lock", *(["--upgrade"] if upgrade else []))
    LOCK.write_text(normalise(LOCK.read_text()))
    TOOL_PINS.write_text(tool_pins())
    return [path for path, text in before.items() if path.read_text() != text]


def check() -> None:
    """Raise LockError unless both committed files are what this tool would write."""
    if not LOCK.exists():
        raise LockError("uv.lock is missing; run ./tools/dev lock")
    if normalise(LOCK.read_text()) != LOCK.read_text():
        raise LockError("uv.lock holds addresses of an index; run ./tools/dev lock")
    resolve("lock", "--check")
    if not TOOL_PINS.exists() or TOOL_PINS.read_text() != tool_pins():
        raise LockError("tools/requirements.txt differs from uv.lock; run ./tools/dev lock")


def tool_pins() -> str:
    """Return the hashed pins of the `tools` dependency group, which pip installs."""
    exported = resolve(
        "export", "--locked", "--only-group", "tools", "--no-emit-workspace", "--no-header"
    )
    return f"# Written by tools/lock.py from uv.lock.\n{exported}"


def resolve(*arguments: str) -> str:
    """Run `uv` with `arguments`, on whole indexes only, and return what it prints."""
    if shutil.which("uv") is None:
        raise LockError("uv is not on PATH; start this task with ./tools/dev")
    environment = {k: v for k, v in os.environ.items() if k not in _PARTIAL_INDEXES}
    done = subprocess.run(
        ["uv", *arguments, "--no-progress"],
        cwd=ROOT,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise LockError(f"uv {' '.join(arguments)} failed:\n{done.stderr.strip()}")
    return done.stdout


def _file_name(url: str) -> str:
    return unquote(url.split("#")[0].split("?")[0].rsplit("/", 1)[1])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./tools/dev lock", description="Write uv.lock and tools/requirements.txt."
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="change nothing, fail if not current")
    choice.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            check()
            print("uv.lock and tools/requirements.txt are current.")
        else:
            changed = write(options.upgrade)
            names = ", ".join(str(path.relative_to(ROOT)) for path in changed)
            print(f"Changed: {names}." if names else "Nothing changed.")
    except LockError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
