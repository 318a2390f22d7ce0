"""Which NPU is here, from torch_npu or else from `npu-smi`, with the reason if none is."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache

from ascend_ops_core.devices import npu
from ascend_ops_core.devices.facts import DeviceFacts, facts_of_soc
from ascend_ops_core.errors import InvalidInputError

_SMI_SECONDS = 20
_FIRST_ROW = re.compile(r"^\|\s*(\d+)\s+(?:Ascend)?(?:910|950|310)", re.MULTILINE)
_FIELD = r"^\s*{name}\s*:\s*(\S+)\s*$"


@dataclass(frozen=True)
class Detection:
    """What was found.

    Attributes:
        facts: facts of the device, None if there is none or it is of no known family.
        reason: where the answer comes from, or why there is no device, in one sentence.
    """

    facts: DeviceFacts | None
    reason: str


def detect() -> Detection:
    """Look for an NPU; never starts one, and never imports torch_npu where that would fail."""
    refusals = []
    for ask in (_from_torch_npu, _from_npu_smi):
        soc, reason = ask()
        if soc is not None:
            return _of_soc(soc, reason)
        refusals.append(reason)
    return Detection(None, f"no device, because {'; '.join(refusals)}")


@cache
def detected() -> Detection:
    """Return :func:`detect`'s answer, found once for this process."""
    return detect()


def _of_soc(soc: str, reason: str) -> Detection:
    try:
        return Detection(facts_of_soc(soc), f"{soc}, as {reason} tells")
    except InvalidInputError as error:
        return Detection(None, f"no known device, because {reason} tells {error}")


def _from_torch_npu() -> tuple[str | None, str]:
    refusal = npu.refusal_to_import()
    if refusal is not None:
        return None, refusal
    try:
        soc = npu.soc_name()
    except Exception as error:  # torch_npu raises many kinds; the reason is kept
        return None, f"torch_npu failed: {type(error).__name__}: {error}"
    return (soc, "torch_npu") if soc else (None, "torch_npu sees no device")


def _from_npu_smi() -> tuple[str | None, str]:
    program = shutil.which("npu-smi")
    if program is None:
        return None, "npu-smi is not on PATH"
    try:
        row = _FIRST_ROW.search(_output(program, "info"))
        if row is None:
            return None, "npu-smi info lists no device"
        board = _output(program, "info", "-t", "board", "-i", row[1], "-c", "0")
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"npu-smi failed: {error}"
    chip = re.search(_FIELD.format(name="Chip Name"), board, re.MULTILINE)
    if chip is None:
        return None, "npu-smi info -t board names no chip"
    name = chip[1] if chip[1].startswith("Ascend") else f"Ascend{chip[1]}"
    part = re.search(_FIELD.format(name="NPU Name"), board, re.MULTILINE)
    # A3 and A5 boards give the family as the chip and the part as the NPU.
    if part is not None and name in ("Ascend910", "Ascend950PR", "Ascend950DT"):
        name = f"{name}_{part[1]}"
    return name, "npu-smi"


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True)
    return done.stdout
