"""What is installed here and what the machine is, read without importing torch or vllm.

`collect()` gathers facts and judges nothing: `doctor.examine()` does that. Everything comes from
distribution metadata, files and environment variables. Loading libhccl or importing torch_npu can
abort the interpreter, so both happen in a subprocess, and only where torch-npu is installed.
"""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, distributions
from pathlib import Path

PROBE_TIMEOUT_S = 60.0
PLATFORM_GROUP = "vllm.platform_plugins"
GENERAL_GROUP = "vllm.general_plugins"
WATCHED_VARIABLES = (
    "VLLM_PLUGINS",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "ASCEND_TOOLKIT_HOME",
    "ASCEND_HOME_PATH",
    "ASCEND_RT_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "HCCL_BUFFSIZE",
)
# Where CANN's installer and the driver's put themselves unless told otherwise.
ASCEND_ROOT = Path("/usr/local/Ascend")

_LOAD_LIBHCCL = "import ctypes; ctypes.CDLL('libhccl.so')"
_COUNT_NPUS = "import torch, torch_npu; print('npus', torch.npu.device_count())"


@dataclass(frozen=True, slots=True)
class PluginEntry:
    """One entry point that vLLM loads: its name, its "module:attribute" value, who ships it."""

    name: str
    value: str
    dist: str


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How a guarded subprocess ended: `detail` is its output, or the last line of its error."""

    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Npu:
    """Signs of an NPU. A probe is None where its precondition was not met, so it did not run.

    cann, driver: versions that CANN's and the driver's own files state, None where there are none.
    """

    device_nodes: tuple[str, ...] = ()
    npu_smi: str | None = None
    libhccl: ProbeResult | None = None
    torch_npu: ProbeResult | None = None
    cann: str | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True)
class Cpu:
    """The CPU as far as speed depends on it. Memory in bytes; 0 where it is unknown."""

    model: str = "unknown"
    cores: int = 0
    flags: frozenset[str] = frozenset()
    memory_total: int = 0
    memory_available: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything the doctor looks at.

    versions: normalised distribution name -> version, of everything on the path.
    triton_module: directory of the module `triton`, None where there is none.
    triton_is_ascend: whether that module carries triton-ascend's back end.
    """

    python: str
    executable: str
    system: str
    versions: Mapping[str, str]
    platform_plugins: tuple[PluginEntry, ...] = ()
    general_plugins: tuple[PluginEntry, ...] = ()
    triton_module: str | None = None
    triton_is_ascend: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    npu: Npu = field(default_factory=Npu)
    cpu: Cpu = field(default_factory=Cpu)


Probe = Callable[[str], ProbeResult]


def run_probe(code: str) -> ProbeResult:
    """Run Python `code` in a fresh interpreter with torch's autoload off; never raises."""
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            check=False,
            env=env,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return ProbeResult(False, str(error))
    if done.returncode == 0:
        return ProbeResult(True, done.stdout.strip())
    lines = done.stderr.strip().splitlines()
    return ProbeResult(False, lines[-1] if lines else f"exit status {done.returncode}")


def collect(
    path: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    probe: Probe = run_probe,
    device_root: Path = Path("/dev"),
    ascend_root: Path = ASCEND_ROOT,
) -> Facts:
    """Gather the facts of an environment.

    path: where distributions and modules are looked for (default: sys.path).
    environ: environment variables (default: os.environ).
    probe: runs code in a guarded subprocess. device_root: where NPU device nodes live.
    ascend_root: where CANN and the driver are installed.
    """
    search = list(sys.path if path is None else path)
    variables = os.environ if environ is None else environ
    dists = _first_of_each(distributions(path=search))
    versions = {name: dist.version for name, dist in dists.items()}
    triton_module, triton_is_ascend = _triton(search)
    return Facts(
        python=platform.python_version(),
        executable=sys.executable,
        system=f"{platform.system()} {platform.machine()}",
        versions=versions,
        platform_plugins=_entries(dists, PLATFORM_GROUP),
        general_plugins=_entries(dists, GENERAL_GROUP),
        triton_module=triton_module,
        triton_is_ascend=triton_is_ascend,
        environ={name: variables[name] for name in WATCHED_VARIABLES if name in variables},
        npu=_npu("torch-npu" in versions, variables, probe, device_root, ascend_root),
        cpu=_cpu(),
    )


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _first_of_each(found: Iterable[Distribution]) -> dict[str, Distribution]:
    """Keep what an import would see: the first distribution of each name on the path."""
    kept: dict[str, Distribution] = {}
    for dist in found:
        name = dist.metadata["Name"]
        if name:
            kept.setdefault(_normalise(name), dist)
    return kept


def _entries(dists: Mapping[str, Distribution], group: str) -> tuple[PluginEntry, ...]:
    return tuple(
        PluginEntry(entry.name, entry.value, name)
        for name, dist in sorted(dists.items())
        for entry in dist.entry_points
        if entry.group == group
    )


def _triton(search: list[str]) -> tuple[str | None, bool]:
    spec = PathFinder.find_spec("triton", search)
    if spec is None or not spec.submodule_search_locations:
        return None, False
    home = Path(next(iter(spec.submodule_search_locations)))
    return str(home), (home / "backends" / "ascend").is_dir()


def _npu(
    torch_npu_installed: bool,
    environ: Mapping[str, str],
    probe: Probe,
    device_root: Path,
    ascend_root: Path,
) -> Npu:
    nodes = tuple(sorted(glob.glob(str(device_root / "davinci[0-9]*"))))
    npu_smi = shutil.which("npu-smi", path=environ.get("PATH"))
    cann, driver = _cann(environ, ascend_root), _stated(ascend_root / "driver" / "version.info")
    if not torch_npu_installed:
        return Npu(nodes, npu_smi, cann=cann, driver=driver)
    libhccl = probe(_LOAD_LIBHCCL)
    counted = probe(_COUNT_NPUS) if libhccl.ok else None
    return Npu(nodes, npu_smi, libhccl, counted, cann, driver)


def _cann(environ: Mapping[str, str], ascend_root: Path) -> str | None:
    """The version in the file that CANN's installer leaves; the sourced environment comes first."""
    named = (environ.get("ASCEND_TOOLKIT_HOME"), environ.get("ASCEND_HOME_PATH"))
    homes = [Path(home) for home in named if home]
    homes += [ascend_root / "ascend-toolkit" / "latest", ascend_root / "cann"]
    for home in homes:
        for file in sorted([*home.glob("*_install.info"), *home.glob("*/*_install.info")]):
            if (version := _stated(file)) is not None:
                return version
    return None


def _stated(file: Path) -> str | None:
    """The value of the line `version=...` in a file, or None."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"(?im)^\s*version\s*=\s*(\S+)", text)
    return match[1] if match else None


def _cpu() -> Cpu:
    model, flags = platform.processor() or platform.machine(), frozenset[str]()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        fields = dict(_colon_lines(cpuinfo.read_text().split("\n\n")[0]))
        model = fields.get("model name", model)
        flags = frozenset((fields.get("flags") or fields.get("Features") or "").split())
    total, available = _memory()
    return Cpu(model, _cores(), flags, total, available)


def _colon_lines(text: str) -> list[tuple[str, str]]:
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return [(key.strip(), value.strip()) for key, _, value in pairs]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0


def _memory() -> tuple[int, int]:
    """(total, available) in bytes, lowered to the container's limit where one is set."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return 0, 0
    fields = dict(_colon_lines(meminfo.read_text()))
    total = int(fields["MemTotal"].split()[0]) * 1024
    available = int(fields.get("MemAvailable", "0").split()[0]) * 1024
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        total, available = min(total, int(text)), min(available, int(text))
    return total, available
