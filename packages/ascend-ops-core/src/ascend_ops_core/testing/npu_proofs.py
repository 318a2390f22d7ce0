"""The proofs of an operator's NPU path without an NPU: torch_npu's contract, the simulated device.

Both change the process (operators and a device are registered), so their tests run in sessions of
their own.
"""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.cases import Case, cases_of
from ascend_ops_core.devices import device_family
from ascend_ops_core.registry import Operator, operators
from ascend_ops_core.testing.contract import calls_in_sources, install
from ascend_ops_core.testing.proofs import Proof, compare_with_definition, small_cases

FAMILIES = ("A2", "A3", "A5")


class ContractProof(Proof):
    """The torch_npu calls of an adaptor fit the wheel's schemas and meta kernels."""

    def check(self) -> None:
        """Call the adaptor on meta tensors and compare what it announces."""
        contract = install(family=self.family)
        before = len(contract.calls)
        with device_family(self.family):
            arguments = self.case.arguments("meta")
            expected = self.operator.fake(*arguments)
            call = self.operator.call_of("torch_npu")
            try:
                actual = call(*arguments)
            except NotImplementedError:
                # The wheel has no meta kernel for the call; its schema was checked.
                assert not contract.calls[-1].checked, "the adaptor itself is not implemented"
                actual = None
        made = contract.calls[before:]
        assert made, "the adaptor made no torch_npu call"
        if actual is not None:
            _compare_shapes("result", actual, expected)
        self.record("torch_npu", ", ".join(sorted({call.op for call in made})))


class SimulatedProof(Proof):
    """The NPU code path, on the simulated device, equals the definition."""

    def check(self) -> None:
        """Run the operator on the device as a model would."""
        arguments = tuple(_moved(value, "npu") for value in self.case.arguments())
        with device_family(self.family) as facts:
            chosen = self.operator.choose(facts, *arguments).implementation
            if chosen in self.case.unspecified:
                chosen = _admitting(self.operator, self.case, self.family)[0]
                actual = self.operator.call_of(chosen)(*arguments)
            else:
                actual = self.operator(*arguments)
        back = tuple(_moved(value, "cpu") for value in arguments)
        compare_with_definition(self.operator, self.case, back, _moved(actual, "cpu"))
        self.record(chosen)


def contract_proofs(namespace: str) -> list[ContractProof]:
    """One proof for every case that an adaptor's limits admit."""
    found = []
    for operator in operators(namespace):
        if "torch_npu" in operator.npu:
            for case in cases_of(operator):
                found += [
                    ContractProof(operator, case, family, "contract")
                    for family in FAMILIES
                    if "torch_npu" in _admitting(operator, case, family)
                ]
    return found


def simulated_proofs(namespace: str) -> list[SimulatedProof]:
    """One proof for every small case and family that some implementation admits.

    What none admits is refused with the limits of all; the operators' own tests show that.
    """
    return [
        SimulatedProof(operator, case, family, "sim")
        for operator, case in small_cases(namespace)
        for family in FAMILIES
        if _shown_on(operator, case, family)
    ]


def unreached_calls(namespace: str) -> list[str]:
    """The torch_npu calls in a package's sources that no contract proof makes.

    Returns:
        Operator and place of each, empty if all are reached.
    """
    contract = install()
    for proof in contract_proofs(namespace):
        proof.check()
    reached = {call.op for call in contract.calls}
    return [
        f"{call.op} ({call.module}:{call.line})"
        for call in calls_in_sources(namespace)
        if call.op not in reached
    ]


def _shown_on(operator: Operator, case: Case, family: str) -> bool:
    """Whether some implementation takes the case, and the family tells more than those before it.

    A Triton kernel is shown with the tiles of every family by its interpreter proof. What this
    device adds, the choice of it and the launch on its memory, is the same on all of them.
    """
    admitting = _admitting(operator, case, family)
    if not admitting or admitting[0] != "triton":
        return bool(admitting)
    before = FAMILIES[: FAMILIES.index(family)]
    return not any(_admitting(operator, case, one)[:1] == ["triton"] for one in before)


def _admitting(operator: Operator, case: Case, family: str) -> list[str]:
    """The implementations that take a case and whose result for it is specified, in order."""
    with device_family(family) as facts:
        return [
            name
            for name in operator.npu
            if name not in case.unspecified
            and operator.supports(name, facts, *case.arguments("meta"))
        ]


def _compare_shapes(what: str, actual: Any, expected: Any) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), f"{what}: {len(actual)} values, not {len(expected)}"
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            _compare_shapes(f"{what}[{i}]", one, other)
    elif isinstance(expected, torch.Tensor):
        assert actual.shape == expected.shape, f"{what}: {actual.shape}, not {expected.shape}"
        assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, not {expected.dtype}"


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        # Strides are part of the case, and a plain copy to a device is dense.
        moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        return moved.copy_(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(one, device) for one in value)
    return value
