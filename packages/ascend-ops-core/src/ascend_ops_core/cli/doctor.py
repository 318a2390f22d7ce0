"""``ascend-ops doctor``: what this environment can do with the operators."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ascend_ops_core import __version__
from ascend_ops_core.devices.detect import detect
from ascend_ops_core.selection import VARIABLE
from ascend_ops_core.testing.compiler.toolchain import has_module

_DISTRIBUTION = "ascend-ops-core"


@dataclass(frozen=True)
class Line:
    """One verdict.

    Attributes:
        subject: what was looked at.
        verdict: ``"ok"``, ``"note"`` or ``"problem"``.
        found: what was found.
        remedy: what to do, for a problem.
    """

    subject: str
    verdict: str
    found: str
    remedy: str = ""


def add_to(tasks: Any) -> None:
    """Add the task to the command line."""
    task: argparse.ArgumentParser = tasks.add_parser(
        "doctor",
        help="what this environment can do, a verdict per line",
        description="Look at Python, torch, the optional libraries and the device. The exit "
        "status is 1 if there is a problem.",
    )
    task.set_defaults(func=run)


def run(options: argparse.Namespace) -> int:
    """Print the verdicts."""
    lines = list(examine())
    width = max(len(line.subject) for line in lines)
    for line in lines:
        print(f"{line.verdict:<8} {line.subject:<{width}}  {line.found}")
        if line.remedy:
            print(f"{'':<8} {'':<{width}}  remedy: {line.remedy}")
    problems = sum(line.verdict == "problem" for line in lines)
    print(f"\n{problems} problem{'' if problems == 1 else 's'}." if problems else "\nNo problem.")
    return 1 if problems else 0


def examine() -> Iterator[Line]:
    """Every verdict, in reading order."""
    yield Line("ascend-ops-core", "ok", __version__)
    yield Line("python", "ok", platform.python_version())
    yield from _torch()
    yield from _optional()
    yield from _forced()
    yield from _device()


def _torch() -> Iterator[Line]:
    found = _version("torch")
    wanted = _wanted("torch")
    if found is None:
        yield Line("torch", "problem", "not installed", f"pip install 'torch{wanted}'")
    elif not _within(found, wanted):
        yield Line("torch", "problem", f"{found}, wanted {wanted}", f"pip install 'torch{wanted}'")
    else:
        yield Line("torch", "ok", found)


def _optional() -> Iterator[Line]:
    numba = _version("numba")
    if numba is None:
        found = "not installed: operators run their torch definition on this CPU, which is slower"
        yield Line("numba", "note", f"{found}; pip install '{_DISTRIBUTION}[cpu-kernels]'")
    else:
        yield Line("numba", "ok", numba)
    stock, ascend = _version("triton"), _version("triton-ascend")
    if stock and ascend:
        yield Line(
            "triton",
            "problem",
            f"triton {stock} and triton-ascend {ascend} write the same module",
            "pip uninstall -y triton triton-ascend, then install the one that is wanted",
        )
    elif ascend and not has_module():
        yield Line(
            "triton",
            "problem",
            f"triton-ascend {ascend} lost its module when stock Triton was removed",
            f"pip install --force-reinstall --no-deps triton-ascend=={ascend}",
        )
    elif ascend:
        compiler = _version("ascendnpu-ir")
        found = f"triton-ascend {ascend}, " + (
            f"with the compiler of ascendnpu-ir {compiler}: `ascend-ops compile` works"
            if compiler
            else f"without ascendnpu-ir: for `ascend-ops compile` install {_DISTRIBUTION}[compile]"
        )
        yield Line("triton", "ok", found)
    elif stock:
        yield Line("triton", "ok", f"{stock}: kernels run in its interpreter, not on an NPU")
    else:
        yield Line("triton", "note", "not installed; a CPU does not need it")
    npu = _version("torch-npu")
    if npu is None:
        yield Line("torch_npu", "note", "not installed; a CPU does not need it")
    elif npu.split(".")[:2] != (_version("torch") or "").split(".")[:2]:
        yield Line(
            "torch_npu",
            "problem",
            f"{npu} beside torch {_version('torch')}",
            "install the torch-npu of torch's version",
        )
    else:
        yield Line("torch_npu", "ok", npu)


def _forced() -> Iterator[Line]:
    setting = os.environ.get(VARIABLE)
    if setting:
        wrong = [entry for entry in setting.split(",") if "=" not in entry]
        if wrong:
            remedy = f"{VARIABLE}=rms_norm=triton,swiglu=torch_npu, for example"
            yield Line(VARIABLE, "problem", f"{wrong[0]!r} is not operator=implementation", remedy)
        else:
            yield Line(VARIABLE, "note", f"forces {setting}")


def _device() -> Iterator[Line]:
    detection = detect()
    if detection.facts is None:
        yield Line("device", "note", f"{detection.reason}; operators run on the CPU")
    else:
        facts = detection.facts
        yield Line("device", "ok", f"{facts.family}: {detection.reason}")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _wanted(name: str) -> str:
    for requirement in importlib.metadata.requires(_DISTRIBUTION) or ():
        if re.fullmatch(rf"{name}\s*[<>=!~].*", requirement):
            return requirement.removeprefix(name).strip()
    return ""


def _within(found: str, wanted: str) -> bool:
    release = _release(found)
    compare = {
        ">=": lambda limit: release >= limit,
        "<": lambda limit: release < limit,
        "==": lambda limit: release[: len(limit)] == limit,
    }
    for part in filter(None, wanted.split(",")):
        sign = re.match(r"[<>=]+", part.strip())
        assert sign is not None, part
        if not compare[sign[0]](_release(part.strip()[len(sign[0]) :])):
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])
