"""What the proofs of a test run showed, one line of JSON each, for ``docs/ops.md``."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "ASCEND_PROOFS"
"""File to which records are added; without it nothing is recorded."""

PROOFS = ("oracle", "interpreter", "compile", "lowered", "contract", "sim")


@dataclass(frozen=True, order=True)
class Record:
    """One proof that held.

    Attributes:
        op: ``package::name``.
        proof: one of :data:`PROOFS`.
        case: the case, or for an oracle the test.
        family: device family, or empty where it does not matter.
        implementation: the NPU implementation that was shown, or empty.
        detail: figures or a source, in words.
    """

    op: str
    proof: str
    case: str
    family: str = ""
    implementation: str = ""
    detail: str = ""


def record(entry: Record) -> None:
    """Add one record to the file that ``ASCEND_PROOFS`` names."""
    if entry.proof not in PROOFS:
        raise ValueError(f"proof {entry.proof!r} is not one of {', '.join(PROOFS)}")
    target = os.environ.get(VARIABLE)
    if target:
        with Path(target).open("a") as file:
            file.write(json.dumps(asdict(entry)) + "\n")


def read(folder: Path) -> list[Record]:
    """Every record in the ``*.jsonl`` files of a folder, sorted, without repetition."""
    found = set()
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            found.add(Record(**json.loads(line)))
    return sorted(found)
