"""What the Ascend front end makes of this package's Triton kernels equals their definitions."""

from __future__ import annotations

from pathlib import Path

import pytest
from ascend_ops_core.testing.lowered_proofs import LoweredProof, lowered_proofs

pytestmark = pytest.mark.compile


@pytest.mark.parametrize("proof", lowered_proofs("ascend_specdec"), ids=str)
def test_lowered_kernel_equals_definition(proof: LoweredProof, tmp_path: Path) -> None:
    proof.check(tmp_path)
