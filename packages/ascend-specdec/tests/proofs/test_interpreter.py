"""Every Triton kernel of this package equals its definition."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.proofs import InterpreterProof, interpreter_proofs

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize("proof", interpreter_proofs("ascend_specdec"), ids=str)
def test_kernel_equals_definition(proof: InterpreterProof) -> None:
    proof.check()
