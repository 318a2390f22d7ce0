"""The device families: what is known about each, every figure with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch

from ascend_ops_core.devices import a2, a3, a5, inference_310p
from ascend_ops_core.devices.figures import BlockSizes, Figure
from ascend_ops_core.errors import InvalidInputError


@dataclass(frozen=True)
class DeviceFacts:
    """One family, or one soc of it.

    The sizes and counts are properties (``vector_cores``, ``ub_bytes``, ...); reading one that no
    public source states raises InvalidInputError. ``figure(name)`` gives value and source.

    Attributes:
        family: ``"A2"``, ``"A3"``, ``"A5"`` or ``"310P"``.
        figures: counts and sizes in bytes by name, a buffer's size being that of one core.
        dtypes: dtypes that kernels and public operators of the family take.
        socs: soc names of the family with their cube and vector cores.
        kv_blocks: rows of a cache block that each attention path takes.
        compile_target: bishengir's ``--target``; None where Triton does not exist.
    """

    family: str
    figures: Mapping[str, Figure[int]] = field(hash=False)
    dtypes: Figure[tuple[torch.dtype, ...]] = field(hash=False)
    socs: Mapping[str, tuple[Figure[int], Figure[int]]] = field(hash=False)
    kv_blocks: Mapping[str, Figure[BlockSizes]] = field(hash=False)
    compile_target: Figure[str] = field(hash=False)

    def figure(self, name: str) -> Figure[int]:
        """Return the count or size ``name`` with its source; the value may be None.

        Raises:
            InvalidInputError: there is no figure of that name.
        """
        if name not in self.figures:
            known = ", ".join(self.figures)
            raise InvalidInputError(f"figure {name!r}", f"known are {known}", "Choose one of them.")
        return self.figures[name]

    def _known(self, name: str) -> int:
        figure = self.figure(name)
        if figure.value is None:
            raise InvalidInputError(
                f"{name} of {self.family}", f"unknown: {figure.source}", "Choose another family."
            )
        return figure.value

    @property
    def triton(self) -> bool:
        """Whether a Triton compiler exists for the family."""
        return self.compile_target.value is not None

    @property
    def vector_cores(self) -> int:
        """Vector cores of a device."""
        return self._known("vector_cores")

    @property
    def cube_cores(self) -> int:
        """Matrix cores of a device."""
        return self._known("cube_cores")

    @property
    def ub_bytes(self) -> int:
        """Unified buffer of one vector core, bytes."""
        return self._known("ub_bytes")

    @property
    def l1_bytes(self) -> int:
        """L1 buffer of one cube core, bytes."""
        return self._known("l1_bytes")

    @property
    def l0a_bytes(self) -> int:
        """Left-operand buffer of one cube core, bytes."""
        return self._known("l0a_bytes")

    @property
    def l0b_bytes(self) -> int:
        """Right-operand buffer of one cube core, bytes."""
        return self._known("l0b_bytes")

    @property
    def l0c_bytes(self) -> int:
        """Accumulator buffer of one cube core, bytes."""
        return self._known("l0c_bytes")

    @property
    def l2_bytes(self) -> int:
        """L2 cache of the device, bytes."""
        return self._known("l2_bytes")

    @property
    def hbm_bytes(self) -> int:
        """Memory of the device, bytes."""
        return self._known("hbm_bytes")

    def of_soc(self, soc: str) -> DeviceFacts:
        """Return the facts with the core counts of ``soc``; unchanged where they are unknown."""
        if soc not in self.socs:
            return self
        cube, vector = self.socs[soc]
        counts = {"cube_cores": cube, "vector_cores": vector}
        return replace(self, figures=MappingProxyType({**self.figures, **counts}))


FAMILIES: dict[str, DeviceFacts] = {
    name: DeviceFacts(
        name,
        figures=MappingProxyType(data.FIGURES),
        dtypes=data.DTYPES,
        socs=MappingProxyType(data.SOCS),
        kv_blocks=MappingProxyType(data.KV_BLOCKS),
        compile_target=data.COMPILE_TARGET,
    )
    for name, data in (("A2", a2), ("A3", a3), ("A5", a5), ("310P", inference_310p))
}

COMPILED_FAMILIES: tuple[str, ...] = tuple(name for name, facts in FAMILIES.items() if facts.triton)
"""The families that have Triton."""

_PREFIXES = {
    "Ascend910B": "A2",
    "Ascend910_93": "A3",
    "Ascend910_95": "A5",
    "Ascend950": "A5",
    "Ascend310P": "310P",
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


def facts_of_soc(soc: str) -> DeviceFacts:
    """Return the facts of a soc such as ``Ascend910B3``, with its own core counts if known.

    Raises:
        InvalidInputError: the name belongs to no family known here.
    """
    for prefix, family in _PREFIXES.items():
        if soc.startswith(prefix):
            return FAMILIES[family].of_soc(soc)
    raise InvalidInputError(
        f"soc {soc!r}",
        f"names known here start with {', '.join(_PREFIXES)}",
        "Name the family with ascend_ops_core.devices.device_family().",
    )
