"""What a compile check finds out about one kernel configuration."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

STAGES = ("none", "ttir", "linalg", "hivm")
"""How far a kernel came: nowhere, Triton's IR, the Ascend front end's linalg, HIVM with memory
planned and synchronisation inserted (everything up to the closed back end)."""


@dataclass(frozen=True)
class Counts:
    """Static counts of the HIVM module; nothing ran.

    Those called ``weighted`` multiply by the trip counts of the enclosing loops that are known;
    a loop of unknown length counts once.

    Attributes:
        vector: vector operations, calls of A5's outlined vector functions counting as one each.
        weighted_vector: the same, weighted.
        vector_intrinsics: weighted register-level instructions in A5's vector functions.
        cube: matrix operations.
        gm_load_bytes, gm_store_bytes: bytes moved from and to global memory.
        weighted_gm_load_bytes, weighted_gm_store_bytes: the same, weighted.
        unsized_transfers: transfers whose size is not static, in none of the byte counts.
        flags: flags set between pipelines of a core.
        barriers: pipeline barriers.
        block_syncs: synchronisations between cube and vector cores.
        scalar: loads and stores of single elements.
        weighted_scalar: the same, weighted: what makes a kernel scalar-bound.
        loops, loops_of_unknown_length: loops of the kernel, and those counted once.
        l1_bits, l0c_bits: largest extent of the planned L1 and L0C buffers.
    """

    vector: int = 0
    weighted_vector: int = 0
    vector_intrinsics: int = 0
    cube: int = 0
    gm_load_bytes: int = 0
    gm_store_bytes: int = 0
    weighted_gm_load_bytes: int = 0
    weighted_gm_store_bytes: int = 0
    unsized_transfers: int = 0
    flags: int = 0
    barriers: int = 0
    block_syncs: int = 0
    scalar: int = 0
    weighted_scalar: int = 0
    loops: int = 0
    loops_of_unknown_length: int = 0
    l1_bits: int = 0
    l0c_bits: int = 0


@dataclass(frozen=True)
class CompileReport:
    """One kernel configuration on one device family.

    Attributes:
        kernel: name of the kernel.
        family: device family.
        target: bishengir's target.
        stage: one of :data:`STAGES`.
        error: the compiler's message, empty if it reached the last stage.
        error_class: short class of the error, such as ``ub_overflow``; empty without one.
        degraded: options that the compiler switched off by itself to make the kernel fit.
        mix_mode: ``"aiv"`` (vector cores), ``"aic"`` (cube) or ``"mix"``.
        ub_bits: unified buffer planned, bits; None if the plan was not reached.
        ub_limit_bits: unified buffer of the family, bits.
        counts: static counts; None if the last stage was not reached.
        seconds: time that the check took when it ran.
        key: hash of everything that the result depends on.
    """

    kernel: str
    family: str
    target: str
    stage: str
    error: str
    error_class: str
    degraded: tuple[str, ...]
    mix_mode: str
    ub_bits: int | None
    ub_limit_bits: int
    counts: Counts | None
    seconds: float
    key: str

    @property
    def ub_share(self) -> float:
        """Part of the unified buffer that is filled (0 if nothing was planned)."""
        return (self.ub_bits or 0) / self.ub_limit_bits

    @property
    def ok(self) -> bool:
        """Whether the kernel compiled as written and fits."""
        return not self.problem

    @property
    def problem(self) -> str:
        """What is wrong, in one line; empty if the kernel compiled as written and fits."""
        if self.error_class:
            return f"{self.error_class} after stage {self.stage}: {self.error.splitlines()[0]}"
        if self.degraded:
            return f"degraded: the compiler retried without {', '.join(self.degraded)}"
        if self.ub_share >= 1:
            return f"unified buffer filled to {self.ub_share:.0%}, nothing to spare"
        return ""

    def figures(self) -> dict[str, Any]:
        """Return what must be the same whenever the same configuration is compiled again."""
        return {
            "kernel": self.kernel,
            "family": self.family,
            "problem": self.problem,
            "mix_mode": self.mix_mode,
            "ub_bits": self.ub_bits,
            "ub_percent": round(100 * self.ub_share, 1),
            "counts": {k: v for k, v in asdict(self.counts).items() if v} if self.counts else None,
        }

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; :meth:`from_json` reads it."""
        return asdict(self) | {"ok": self.ok, "problem": self.problem, "ub_share": self.ub_share}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> CompileReport:
        """Return the report that :meth:`to_json` wrote."""
        fields = {k: v for k, v in values.items() if k in cls.__dataclass_fields__}
        fields["degraded"] = tuple(fields["degraded"])
        fields["counts"] = Counts(**fields["counts"]) if fields["counts"] else None
        return cls(**fields)
