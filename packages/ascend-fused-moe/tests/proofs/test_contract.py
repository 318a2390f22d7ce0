"""Every torch_npu call of this package fits torch_npu."""

from __future__ import annotations

import pytest
import torch
from ascend_fused_moe.dispatchers import TokenDispatcherWithMC2
from ascend_fused_moe.groups import SingleRank
from ascend_fused_moe.pipeline import MoETokenDispatchInput
from ascend_ops_core.devices import device_family
from ascend_ops_core.testing.contract import install
from ascend_ops_core.testing.npu_proofs import ContractProof, contract_proofs, unreached_calls

pytestmark = pytest.mark.contract

FAMILIES = ("A2", "A3")


class Ranks(SingleRank):
    """Sixteen ranks of which one asks for shapes alone."""

    rank_in_group = 3
    world_size = 16
    name = "ranks"


@pytest.mark.parametrize("proof", contract_proofs("ascend_fused_moe"), ids=str)
def test_calls_fit(proof: ContractProof) -> None:
    proof.check()


def dispatch_and_combine(family: str, active: bool) -> None:
    """MC2's calls are no operator of ours, since what they compute takes more than one process."""
    install(family=family)
    mask = torch.empty(8, dtype=torch.bool, device="meta") if active else None
    given = MoETokenDispatchInput(
        torch.empty(8, 1024, dtype=torch.bfloat16, device="meta"),
        torch.empty(8, 4, device="meta"),
        torch.empty(8, 4, dtype=torch.int64, device="meta"),
        mask,
    )
    with device_family(family):
        dispatcher = TokenDispatcherWithMC2(Ranks(), 3)
        dispatched = dispatcher.token_dispatch(given)
        out = dispatcher.token_combine(dispatched.rows, dispatched.metadata)
    assert dispatched.rows.shape == (8 * 16 * 3, 1024)
    dispatched.group_list.check(len(dispatched.rows), 3)
    assert (out.shape, out.dtype) == ((8, 1024), torch.bfloat16)


@pytest.mark.parametrize("active", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("family", FAMILIES)
def test_mc2_fits(family: str, active: bool) -> None:
    dispatch_and_combine(family, active)


def test_every_call_in_the_sources_is_reached() -> None:
    dispatch_and_combine("A3", active=True)
    assert unreached_calls("ascend_fused_moe") == []
