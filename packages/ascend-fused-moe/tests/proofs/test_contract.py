"""Every torch_npu call of this package fits torch_npu."""

from __future__ import annotations

import pytest
from ascend_ops_core.testing.npu_proofs import ContractProof, contract_proofs, unreached_calls

pytestmark = pytest.mark.contract


@pytest.mark.parametrize("proof", contract_proofs("ascend_fused_moe"), ids=str)
def test_calls_fit(proof: ContractProof) -> None:
    proof.check()


def test_every_call_in_the_sources_is_reached() -> None:
    assert unreached_calls("ascend_fused_moe") == []
