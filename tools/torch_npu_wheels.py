"""The files of torch_npu that contract mode reads, below .cache/torch-npu/VERSION.

A wheel has 45 MB and needs CANN to be imported; schemas, meta kernels and documentation of it are
2 MB of text and need nothing. Versions and hashes are pinned in torch_npu_wheels.toml.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.environments import CACHE

PINS = Path(__file__).with_suffix(".toml")
FOLDER = CACHE / "torch-npu"
DEFAULT = "2.13.0"
"""The version that fits the torch of this workspace; what a single check runs against."""


@dataclass(frozen=True)
class Pins:
    """Content of torch_npu_wheels.toml.

    Attributes:
        python: Python version of the builds.
        platform: their platform, as uv names it.
        files: what is kept, relative to the folder `torch_npu`.
        sha256: hash of the wheel by version.
    """

    python: str
    platform: str
    files: list[str]
    sha256: dict[str, str]


def pins() -> Pins:
    """Return what is pinned."""
    return Pins(**tomllib.loads(PINS.read_text()))


def fetch() -> Path:
    """Download what is absent; return the folder that has one subfolder for each version."""
    wanted = pins()
    for version, sha256 in wanted.sha256.items():
        stamp = FOLDER / version / "sha256"
        if not stamp.exists() or stamp.read_text() != sha256:
            _fetch_one(wanted, version, sha256)
    return FOLDER


def _fetch_one(wanted: Pins, version: str, sha256: str) -> None:
    print(f"Fetching torch_npu {version} ...", file=sys.stderr)
    target = FOLDER / version
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="torch-npu-") as name:
        unpacked = Path(name) / "unpacked"
        requirement = Path(name) / "requirement.txt"
        requirement.write_text(f"torch-npu=={version} --hash=sha256:{sha256}\n")
        command = ["uv", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        command += ["--python-version", wanted.python, "--python-platform", wanted.platform]
        command += ["--target", str(unpacked), "--requirement", str(requirement)]
        if subprocess.run(command, check=False).returncode != 0:
            sys.exit(f"uv could not fetch torch_npu {version} (see above)")
        for file in wanted.files:
            kept = target / "torch_npu" / file
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(unpacked / "torch_npu" / file, kept)
    (target / "sha256").write_text(sha256)


if __name__ == "__main__":
    print(fetch())
