"""The device families as data."""

from __future__ import annotations

from dataclasses import dataclass

from ascend_ops_core.errors import InvalidInputError


@dataclass(frozen=True)
class DeviceFacts:
    """One family.

    Attributes:
        family: ``"A2"``, ``"A3"``, ``"A5"`` or ``"310P"``.
        vector_cores: vector cores of a device.
        cube_cores: matrix cores of a device.
        ub_bytes: unified buffer of one vector core, bytes.
    """

    family: str
    vector_cores: int
    cube_cores: int
    ub_bytes: int


FAMILIES: dict[str, DeviceFacts] = {
    "A2": DeviceFacts("A2", vector_cores=48, cube_cores=24, ub_bytes=192 * 1024),
    "A3": DeviceFacts("A3", vector_cores=48, cube_cores=24, ub_bytes=192 * 1024),
    "A5": DeviceFacts("A5", vector_cores=64, cube_cores=32, ub_bytes=248 * 1024),
}


def facts_of(family: str) -> DeviceFacts:
    """Return the facts of a family.

    Raises:
        InvalidInputError: the family is not known.
    """
    if family not in FAMILIES:
        raise InvalidInputError(
            f"device family {family!r}", f"known are {', '.join(FAMILIES)}", "Choose one of them."
        )
    return FAMILIES[family]
