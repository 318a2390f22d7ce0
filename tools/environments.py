"""The Python environments of the tasks, made from uv.lock below .cache/envs.

`uv sync` refuses a lock without addresses (see tools/lock.py), so an environment is the output of
`uv export --locked` given to `uv pip`, hashes required. One whose pins did not change is reused.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.lock import LockError, resolve
from tools.workspace import ROOT, Package, packages, with_lower

CACHE = ROOT / ".cache"

# With a plain `==`, a wheel folder that has torch 2.13.0+cpu would win over the locked 2.13.0, and
# then fail the hash check.
_PIN = re.compile(r"^([A-Za-z0-9._-]+(?:\[[^]]*\])?)==", re.MULTILINE)
# Without its bytecode every process that imports vLLM compiles 5,000 modules, half of a minute.
_DROPPED = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
OVERRIDES = "torch===2.13.0\ntorchvision===0.28.0\n"


@dataclass(frozen=True)
class Environment:
    """A ready environment at `path`."""

    path: Path

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    def program(self, name: str) -> str:
        """Return the path of an installed command."""
        return str(self.path / "bin" / name)

    def variables(self) -> dict[str, str]:
        """Return the process environment in which its programs are found first."""
        kept = {k: v for k, v in os.environ.items() if k not in _DROPPED}
        kept["VIRTUAL_ENV"] = str(self.path)
        kept["PATH"] = f"{self.path / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return kept


def development() -> Environment:
    """Return the environment with all packages editable, vLLM for CPU and the test tools."""
    extras = ("--all-extras", "--no-extra", "npu", "--no-extra", "compile")
    pins = export("--all-packages", *extras, "--group", "dev")
    projects = [package.directory / "pyproject.toml" for package in packages().values()]
    texts = [file.read_text() for file in projects]
    with _prepared("dev", pins, *texts, keep=True) as (env, fresh):
        if fresh:
            _sync(env, pins)
            editable = [part for p in packages().values() for part in ("-e", str(p.directory))]
            _pip(env, "install", "--no-deps", *_build_pins(), *editable)
    return env


def compiler() -> Environment:
    """Return the environment with the Ascend compiler and the kernel packages, editable.

    triton-ascend takes the place of stock Triton, on which torch depends: that is left out.
    """
    kernel_packages = [
        one
        for one in packages().values()
        if (one.directory / "src" / one.import_name / "ops").is_dir()
    ]
    chosen = [part for one in kernel_packages for part in ("--package", one.name)]
    extras = ("--extra", "compile", "--extra", "test", "--no-emit-package", "triton")
    pins = export(*chosen, *extras)
    projects = [(one.directory / "pyproject.toml").read_text() for one in kernel_packages]
    with _prepared("compile", pins, *projects, keep=True) as (env, fresh):
        if fresh:
            _sync(env, pins)
            editable = [part for p in kernel_packages for part in ("-e", str(p.directory))]
            _pip(env, "install", "--no-deps", *_build_pins(), *editable)
    return env


def tools_group(group: str) -> Environment:
    """Return an environment with one dependency group of the root pyproject.toml and no package."""
    pins = export("--only-group", group)
    with _prepared(group, pins, keep=True) as (env, fresh):
        if fresh:
            _sync(env, pins)
    return env


def isolated(name: str, package: Package, extras: Sequence[str], wheels: Path) -> Environment:
    """Return the environment `name` of what the wheel of `package` declares, and nothing else.

    `wheels` holds the wheels of the package and of those below it. uv resolves the metadata of the
    wheels; the lock only fixes versions and hashes, so an undeclared dependency is absent here.
    """
    chosen = [part for extra in extras for part in ("--extra", extra)]
    pins = export("--package", package.name, *chosen)
    files = [str(wheel_of(lower, wheels)) for lower in with_lower(package.name)]
    with _prepared(name, pins) as (env, fresh):
        if fresh:
            overrides = env.path / "overrides.txt"
            overrides.write_text(OVERRIDES)
            wanted = f"{package.name}[{','.join(extras)}] @ {Path(files[-1]).as_uri()}"
            limits = ("--constraints", str(_pins_file(env, pins)), "--overrides", str(overrides))
            # uv knows wheels of a folder by version alone, and a version has many builds here.
            anew = [f"--refresh-package={one.name}" for one in with_lower(package.name)]
            _pip(env, "install", *limits, *anew, "--find-links", str(wheels), wanted)
        _pip(env, "install", "--no-deps", "--reinstall", *files)
    return env


def emptied(folder: Path) -> Path:
    """Return `folder`, existing and empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def build(package: Package, into: Path, *options: str) -> None:
    """Build `package` into the folder `into`, blind to the workspace: `uv build` with `options`."""
    command = ["uv", "build", "--no-sources", "--quiet", *options, *_build_pins()]
    _run([*command, "--out-dir", str(into), str(package.directory)])


def wheel_of(package: Package, folder: Path) -> Path:
    """Return the one wheel of `package` in `folder`."""
    found = list(folder.glob(f"{package.import_name}-*.whl"))
    if len(found) != 1:
        raise FileNotFoundError(f"{folder} holds {len(found)} wheels of {package.name}, wanted 1")
    return found[0]


def export(*selection: str) -> str:
    """Return the pins, with hashes, that uv.lock has for `selection` (options of `uv export`)."""
    try:
        exported = resolve("export", "--locked", "--no-header", "--no-emit-workspace", *selection)
    except LockError as error:
        sys.exit(f"{error}\nIf a pyproject.toml changed, run ./tools/dev lock.")
    return _PIN.sub(r"\1===", exported)


@contextmanager
def _prepared(name: str, *inputs: str, keep: bool = False) -> Iterator[tuple[Environment, bool]]:
    """Yield the environment and whether it must be filled; stamp it if that succeeds.

    With `keep` an environment of the same Python is filled in place, which `uv pip sync` makes
    exact: a changed pyproject.toml then costs seconds and does not pull files from under others.
    """
    env = Environment(CACHE / "envs" / name)
    env.path.parent.mkdir(parents=True, exist_ok=True)
    key = "\0".join([sys.version, *inputs, Path(__file__).read_text()])
    wanted = hashlib.sha256(key.encode()).hexdigest()
    stamp = env.path / "stamp"
    with (env.path.parent / f"{name}.guard").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        fresh = not (env.python.exists() and stamp.exists() and stamp.read_text() == wanted)
        if fresh:
            print(f"Installing {env.path.relative_to(ROOT)} ...", file=sys.stderr)
            python = env.path / "python-version"
            same = python.exists() and python.read_text() == sys.version
            if not (keep and same and env.python.exists()):
                shutil.rmtree(env.path, ignore_errors=True)
                _run(["uv", "venv", "--quiet", "--python", sys.executable, str(env.path)])
                python.write_text(sys.version)
        yield env, fresh
        stamp.write_text(wanted)


def _build_pins() -> list[str]:
    file = CACHE / "build-pins.txt"
    pins = export("--only-group", "build")
    if not file.exists() or file.read_text() != pins:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Another session may read it at this moment.
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(pins)
        new.replace(file)
    return ["--build-constraints", str(file)]


def _sync(env: Environment, pins: str) -> None:
    _pip(env, "sync", "--require-hashes", str(_pins_file(env, pins)))


def _pins_file(env: Environment, pins: str) -> Path:
    file = env.path / "pins.txt"
    file.write_text(pins)
    return file


def _pip(env: Environment, verb: str, *arguments: str) -> None:
    _run(["uv", "pip", verb, "--quiet", "--python", str(env.python), *arguments])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:3])} failed with exit status {done.returncode} (see above)")
    return done.stdout


def main(arguments: list[str]) -> int:
    task, rest = arguments[0], arguments[1:]
    command = rest[1:] if rest[:1] == ["--"] else rest
    if task == "shell":
        command = [os.environ.get("SHELL", "/bin/sh"), *command]
    if not command:
        print("Usage: ./tools/dev run -- COMMAND [ARGUMENTS]", file=sys.stderr)
        return 2
    variables = development().variables()
    program = shutil.which(command[0], path=variables["PATH"])
    if program is None:
        print(f"{command[0]}: no such command in the development environment", file=sys.stderr)
        return 127
    sys.stdout.flush()
    return os.execve(program, command, variables)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
