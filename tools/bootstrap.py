"""What `tools/dev` starts: a private environment with uv and nox, then the task.

Imports the standard library only. The pins are tools/requirements.txt, written by tools/lock.py.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "tools" / "requirements.txt"
HOME = ROOT / ".cache" / "tools"

HELP = """\
Usage: ./tools/dev TASK [ARGUMENTS]

  demo            serve the small DeepSeek-V4 that ships here and stream a completion
                  (-- --help: its own options)
  test            everything that must pass: lint, every package's own tests, the vLLM engine, the
                  server (--changed-from REF: only what a change since the git revision REF touches)
  run -- COMMAND  run a command in the development environment, with all packages installed
                  editable, e.g. ./tools/dev run -- ascend-vllm doctor
  shell           open your shell in that environment
  lint            ruff, import contracts, mypy
  tests-PACKAGE   one package's wheel in a clean environment, e.g. tests-ascend-attention
  tests-repo      tests of tools/ and ci/
  interpreter, compile, contract, sim
                  the proofs of every operator: Triton's interpreter, the Ascend compiler,
                  torch_npu's schemas, the simulated NPU
  operators       whether docs/ops.md is what those sessions recorded (-- --write renews it)
  engine, engine-npu, serve
                  tests inside the real vLLM: on the CPU, on the simulated NPU, and of its HTTP
                  server and several processes
  bench           benchmarks (-- arguments)
  docs            build the documentation into .cache/site
  build           every wheel and source archive into dist/, checked
  lock            update uv.lock (--check: only say whether it is current; --upgrade)
  list            every nox session

Tests and benchmarks take pytest's or their own arguments after --.
Everything is installed below .cache/ here; delete it to start anew. The first demo or test
installs PyTorch and vLLM, several GB. Package indexes come from the usual settings of uv (UV_*)
or else of pip (its configuration files, PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS).
"""


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if arguments else 2
    task, rest = arguments[0], arguments[1:]
    python = _tools_python()
    environment = _tools_environment(python)
    if task == "lock":
        command = [python, ROOT / "tools" / "lock.py", *rest]
    elif task in ("run", "shell"):
        command = [python, ROOT / "tools" / "environments.py", task, *rest]
    elif task == "test":
        command = [python, ROOT / "ci" / "test.py", *rest]
    elif task == "list":
        command = [python, "-m", "nox", "--list"]
    else:
        after = rest[1:] if rest[:1] == ["--"] else rest
        command = [python, "-m", "nox", "-s", task, *(["--", *after] if after else [])]
        command[3:3] = ["-f", ROOT / "noxfile.py"]
    return os.execve(python, [str(part) for part in command], environment)


def uv_settings(environment: Mapping[str, str], pip_config: Mapping[str, str]) -> dict[str, str]:
    """Return the UV_* variables that make uv use the indexes which pip is set up for.

    `pip_config` is what `pip config list` says, `PIP_*` variables included (`:env:.NAME`).
    uv reads none of it; whoever has set up uv itself (any of its index variables) is left alone.
    """
    names = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
    if any(environment.get(name) for name in names):
        return {}

    def setting(name: str) -> list[str]:
        for section in (":env:", "install", "global"):
            value = pip_config.get(f"{section}.{name}", "")
            if value.split():
                return value.split()
        return []

    settings = {}
    if setting("index-url"):
        settings["UV_DEFAULT_INDEX"] = setting("index-url")[0]
    if setting("extra-index-url"):
        settings["UV_INDEX"] = " ".join(setting("extra-index-url"))
        # pip's own rule. The lock's hashes settle which files are acceptable.
        settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if setting("find-links"):
        settings["UV_FIND_LINKS"] = ",".join(setting("find-links"))
    if setting("trusted-host"):
        settings["UV_INSECURE_HOST"] = " ".join(setting("trusted-host"))
    if setting("cert") and not environment.get("SSL_CERT_FILE"):
        settings["SSL_CERT_FILE"] = setting("cert")[0]
    return settings


def _tools_python() -> Path:
    """Return the Python of the private environment, making it when its pins or Python changed."""
    python = HOME / "bin" / "python"
    stamp = HOME / "stamp"
    wanted = hashlib.sha256(PINS.read_bytes() + sys.version.encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"Installing uv and nox into {HOME.relative_to(ROOT)} ...", file=sys.stderr)
    shutil.rmtree(HOME, ignore_errors=True)
    try:
        venv.create(HOME, with_pip=True)
    except subprocess.CalledProcessError:
        sys.exit(
            f"{sys.executable} cannot make a virtual environment with pip; install the venv module "
            "of this Python (on Debian and Ubuntu: the package python3-venv)"
        )
    install = [python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", PINS]
    if subprocess.run([str(part) for part in install], check=False).returncode != 0:
        sys.exit("pip could not install uv and nox (see above); check the package index it uses")
    stamp.write_text(wanted)
    return python


def _tools_environment(python: Path) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    listed = subprocess.run(
        [str(python), "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    config = {}
    for line in listed.stdout.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            config[name] = value.strip("'\"").replace("\\n", " ")
    environment.update(uv_settings(os.environ, config))
    return environment


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
