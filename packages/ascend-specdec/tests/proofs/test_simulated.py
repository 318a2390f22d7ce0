"""Every operator of this package on the simulated NPU equals its definition."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.npu_proofs import SimulatedProof, simulated_proofs
from ascend_ops_core.testing.simulated_npu import install

pytestmark = pytest.mark.sim


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    install("A3", devices=2, memory_bytes=64 * 1024**2)


@pytest.mark.parametrize("proof", simulated_proofs("ascend_specdec"), ids=str)
def test_npu_path_equals_definition(proof: SimulatedProof) -> None:
    proof.check()
