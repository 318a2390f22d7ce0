"""Named inputs of operators, from which every proof and benchmark is made.

A family's ``cases.py`` holds ``CASES``, for each operator a tuple of :class:`Case`::

    CASES = {
        "rms_norm": (
            Case("odd", lambda new: (new.randn(3, 65), new.randn(65), 1e-6)),
            Case("v4", lambda new: (new.randn(4096, 7168, dtype=BF16), ...), large=True),
        ),
    }
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ascend_ops_core.registry import Operator


class Inputs:
    """Makes the tensors of a case, with values on a CPU or as shapes alone on ``meta``.

    Args:
        device: ``"cpu"`` or ``"meta"``.
        seed: of the values.
    """

    def __init__(self, device: str = "cpu", seed: int = 0) -> None:
        self.device = device
        self._generator = torch.Generator().manual_seed(seed)

    def randn(
        self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0
    ) -> torch.Tensor:
        """Normal values times ``scale``."""
        if self.device == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        return (torch.randn(shape, generator=self._generator) * scale).to(dtype)

    def rand(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Uniform values in [0, 1)."""
        if self.device == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        return torch.rand(shape, generator=self._generator).to(dtype)

    def randint(
        self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64
    ) -> torch.Tensor:
        """Uniform integers in [low, high)."""
        if self.device == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        return torch.randint(low, high, shape, generator=self._generator).to(dtype)

    def permutation(self, n: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """The integers below ``n`` in random order."""
        if self.device == "meta":
            return torch.empty(n, dtype=dtype, device="meta")
        return torch.randperm(n, generator=self._generator).to(dtype)

    def full(self, value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """One value everywhere."""
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def tensor(self, values: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
        """Given values."""
        return torch.tensor(values, dtype=dtype, device=self.device)


@dataclass(frozen=True)
class Case:
    """One set of arguments of an operator.

    Attributes:
        name: unique among the operator's cases.
        make: returns the arguments in the schema's order.
        large: a size that is used in production; only its shapes are used (compile, contract).
        scale: magnitude of the terms that are summed, for the tolerance of float results.
        operands: dtype that kernels round intermediate values to where products take them, whose
            tolerance then holds for float32 results as well.
        unspecified: NPU implementations whose documentation does not say what comes out for these
            values; the proof on the simulated device takes the next one.
    """

    name: str
    make: Callable[[Inputs], tuple[Any, ...]]
    large: bool = False
    scale: float = 1.0
    operands: torch.dtype | None = None
    unspecified: tuple[str, ...] = ()

    def arguments(self, device: str = "cpu") -> tuple[Any, ...]:
        """Make the arguments, the same at every call."""
        return self.make(Inputs(device))

    def __str__(self) -> str:
        return self.name


def cases_of(operator: Operator) -> tuple[Case, ...]:
    """The cases of an operator.

    Raises:
        KeyError: its family's ``cases.py`` has none for it.
    """
    module = importlib.import_module(f"{operator.family}.cases")
    found: tuple[Case, ...] = module.CASES[operator.name]
    return found
