"""The proofs that every operator gives from its cases, as pytest parameters.

A package shows them with one short file per proof::

    @pytest.mark.interpreter
    @pytest.mark.parametrize("proof", interpreter_proofs("ascend_ops_core"), ids=str)
    def test_interpreter(proof: Proof) -> None:
        proof.check()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ascend_ops_core.cases import Case, cases_of
from ascend_ops_core.devices import device_family
from ascend_ops_core.registry import Operator, operators
from ascend_ops_core.testing.environment import strict_environment
from ascend_ops_core.testing.guards import fenced_allocations, guarded
from ascend_ops_core.testing.interpreter import interpreter
from ascend_ops_core.testing.recorder import Record, record
from ascend_ops_core.testing.tolerances import assert_close

TRITON_FAMILIES = ("A2", "A5")
"""Families whose block sizes differ, so that the interpreter sees both tilings (A3 is as A2)."""


@dataclass(frozen=True)
class Proof:
    """One operator on one case for one family.

    Attributes:
        operator: what is shown.
        case: its inputs.
        family: the device family that it is tiled and chosen for.
        kind: name of the proof.
    """

    operator: Operator
    case: Case
    family: str
    kind: str

    def __str__(self) -> str:
        return f"{self.operator.name}-{self.case.name}-{self.family}"

    def record(self, implementation: str, detail: str = "") -> None:
        """Say that this proof held."""
        name = self.operator.qualified_name
        record(Record(name, self.kind, self.case.name, self.family, implementation, detail))


class InterpreterProof(Proof):
    """The Triton kernel equals the definition, on fenced memory filled with NaN."""

    def check(self) -> None:
        """Run both and compare results and arguments."""
        with device_family(self.family) as facts:
            support = self.operator.supports("triton", facts, *self.case.arguments("meta"))
            if not support:
                raise AssertionError(f"a case its own kernel refuses: {support.reason}")
            call = self.operator.call_of("triton")
            arguments, guards = guarded(self.case.arguments())
            with strict_environment(), interpreter(), fenced_allocations() as allocated:
                actual = call(*arguments)
        for guard in guards + allocated:
            guard.assert_fences()
        compare_with_definition(self.operator, self.case, arguments, actual)
        self.record("triton")


def interpreter_proofs(namespace: str) -> list[InterpreterProof]:
    """One proof for every small case of every operator that has a Triton kernel."""
    return [proof for operator in operators(namespace) for proof in proofs_of_kernels(operator)]


def proofs_of_kernels(operator: Operator) -> Iterator[InterpreterProof]:
    """The same for one operator, in the order of its cases."""
    if "triton" in operator.npu:
        for case in _small(operator):
            for family in TRITON_FAMILIES:
                if _taken(operator, "triton", family, case):
                    yield InterpreterProof(operator, case, family, "interpreter")


def small_cases(namespace: str) -> Iterator[tuple[Operator, Case]]:
    """Every operator of a package with each of its cases that has values."""
    for operator in operators(namespace):
        for case in _small(operator):
            yield operator, case


def _small(operator: Operator) -> list[Case]:
    return [case for case in cases_of(operator) if not case.large]


def compare_with_definition(
    operator: Operator, case: Case, arguments: tuple[Any, ...], actual: Any
) -> None:
    """Fail unless an implementation did what the definition does.

    Args:
        operator: the operator.
        case: the case that was run.
        arguments: the arguments after the run, on the CPU; those that the schema does not mark
            as written must be untouched.
        actual: the results, on the CPU.
    """
    wanted_arguments = case.arguments()
    expected = operator.reference(*wanted_arguments)
    _compare("result", actual, expected, case)
    untouched = case.arguments()
    for i, (value, wanted, before) in enumerate(
        zip(arguments, wanted_arguments, untouched, strict=True)
    ):
        if operator.mutates:
            _compare(f"argument {i}", value, wanted, case)
        else:
            _compare_exactly(f"argument {i}", value, before)


def _compare(what: str, actual: Any, expected: Any, case: Case) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), f"{what}: {len(actual)} values, not {len(expected)}"
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            _compare(f"{what}[{i}]", one, other, case)
    elif isinstance(expected, torch.Tensor):
        assert actual.shape == expected.shape, f"{what}: {actual.shape}, not {expected.shape}"
        assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, not {expected.dtype}"
        if expected.dtype.is_floating_point and expected.element_size() > 1:
            assert_close(actual, expected, scale=case.scale, operands=case.operands)
        else:
            _compare_exactly(what, actual, expected)
    else:
        assert actual == expected, f"{what}: {actual!r}, not {expected!r}"


def _compare_exactly(what: str, actual: Any, expected: Any) -> None:
    if isinstance(expected, (list, tuple)):
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            _compare_exactly(f"{what}[{i}]", one, other)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(
            actual.double(), expected.double(), rtol=0, atol=0, equal_nan=True, msg=what
        )
    else:
        assert actual == expected, f"{what}: {actual!r}, not {expected!r}"


def _taken(operator: Operator, implementation: str, family: str, case: Case) -> bool:
    with device_family(family) as facts:
        return bool(operator.supports(implementation, facts, *case.arguments("meta")))
