"""A lowered run for every operator with a Triton kernel; see `ascend_ops_core.testing.lowered`.

A package shows it in ``tests/proofs/test_lowered.py``, in the environment of the compile check::

    @pytest.mark.compile
    @pytest.mark.parametrize("proof", lowered_proofs("ascend_ops_core"), ids=str)
    def test_lowered_kernel_equals_definition(proof: LoweredProof, tmp_path: Path) -> None:
        proof.check(tmp_path)
"""

from __future__ import annotations

from pathlib import Path

from ascend_ops_core.devices import device_family
from ascend_ops_core.launch import executor
from ascend_ops_core.testing.compiler.configurations import launches_of
from ascend_ops_core.testing.environment import strict_environment
from ascend_ops_core.testing.guards import fenced_allocations, guarded
from ascend_ops_core.testing.lowered import LoweredRunner, NotRunnableError, missing
from ascend_ops_core.testing.proofs import Proof, compare_with_definition, small_cases


class LoweredProof(Proof):
    """What the front end made of the kernel equals the definition, on fenced memory."""

    def check(self, folder: Path) -> None:
        """Run both and compare; skip where the kernel or this machine cannot.

        Args:
            folder: an empty folder for what is built.
        """
        # Skipping is pytest's; the module itself imports without it.
        import pytest

        reason = missing()
        if reason:
            pytest.skip(reason)
        runner = LoweredRunner(self.family, folder)
        with device_family(self.family):
            call = self.operator.call_of("triton")
            arguments, guards = guarded(self.case.arguments())
            try:
                with strict_environment(), executor(runner.run), fenced_allocations() as allocated:
                    actual = call(*arguments)
            except NotRunnableError as error:
                pytest.skip(str(error))
        for guard in guards + allocated:
            guard.assert_fences()
        compare_with_definition(self.operator, self.case, arguments, actual)
        self.record("triton")


def lowered_proofs(namespace: str, family: str = "A2") -> list[LoweredProof]:
    """One proof for every operator of a package: its first small case that launches a kernel."""
    found: dict[str, LoweredProof] = {}
    for operator, case in small_cases(namespace):
        if operator.name in found or "triton" not in operator.npu:
            continue
        if launches_of(operator, case, family):
            found[operator.name] = LoweredProof(operator, case, family, "lowered")
    return list(found.values())
