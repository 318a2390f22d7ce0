"""What a figure about a device consists of: its value and where that is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

TARGET_SPEC = (
    "target spec {soc} of the ascendnpu-ir 1.2.0 wheel "
    "(bishengir-opt --hacc-append-device-spec=target={soc})"
)
NO_PUBLIC_SOURCE = "no public document found that states it"


@dataclass(frozen=True)
class Figure(Generic[T]):
    """One value with its source.

    Attributes:
        value: the figure, or None where nothing public states it.
        source: where the value is written, or why there is none.
    """

    value: T | None
    source: str


@dataclass(frozen=True)
class BlockSizes:
    """Rows of one block of a paged cache that an attention path takes.

    Attributes:
        step: every size is a multiple of it.
        smallest: smallest size in rows.
        largest: largest size in rows.
        only: the sizes taken, where they are a list; empty when the range says it all.
    """

    step: int
    smallest: int
    largest: int
    only: tuple[int, ...] = ()

    def allows(self, rows: int) -> bool:
        """Tell whether blocks of ``rows`` rows are taken."""
        if self.only and rows not in self.only:
            return False
        return self.smallest <= rows <= self.largest and rows % self.step == 0


def listed(*sizes: int) -> BlockSizes:
    """Return the table that takes exactly ``sizes``."""
    return BlockSizes(1, min(sizes), max(sizes), sizes)


def from_target_spec(
    soc: str,
    *,
    cube_cores: int,
    vector_cores: int,
    ub_kib: int,
    l0c_kib: int,
) -> dict[str, Figure[int]]:
    """Return the figures that bishengir's target spec of ``soc`` states; it gives sizes in bits.

    L1 (512 KiB) and L0A, L0B (64 KiB) are the same in every spec that the wheel has for the
    families here.
    """
    source = TARGET_SPEC.format(soc=soc)
    values = {
        "cube_cores": cube_cores,
        "vector_cores": vector_cores,
        "ub_bytes": ub_kib * 1024,
        "l1_bytes": 512 * 1024,
        "l0a_bytes": 64 * 1024,
        "l0b_bytes": 64 * 1024,
        "l0c_bytes": l0c_kib * 1024,
    }
    return {name: Figure(value, source) for name, value in values.items()}


def cores_of_socs(
    table: Mapping[str, tuple[int, int]],
) -> dict[str, tuple[Figure[int], Figure[int]]]:
    """Turn ``soc -> (cube cores, vector cores)`` as read from the target specs into figures."""
    return {
        soc: (
            Figure(cube, TARGET_SPEC.format(soc=soc)),
            Figure(vector, TARGET_SPEC.format(soc=soc)),
        )
        for soc, (cube, vector) in table.items()
    }
