"""Every torch_npu call of this package fits torch_npu."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from ascend_fused_moe.dispatchers import TokenDispatcherWithMC2
from ascend_fused_moe.groups import SingleRank
from ascend_fused_moe.ops.permutation import npu as permutation
from ascend_fused_moe.pipeline import MoETokenDispatchInput
from ascend_ops_core.devices import device_family
from ascend_ops_core.testing.contract import (
    SUPPORTED_WHEELS,
    install,
    open_wheel,
    read_schemas,
)
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


def schemas_of(version: str) -> dict[str, str]:
    return read_schemas(open_wheel(Path(os.environ["ASCEND_TORCH_NPU_WHEELS"]) / version))


@pytest.mark.parametrize("version", SUPPORTED_WHEELS)
def test_no_wheel_fuses_dispatch_experts_and_combine(version: str) -> None:
    """What `fused_mc2` is refused for; once a wheel has such an operator, it needs an adaptor."""
    names = schemas_of(version)
    assert "npu_moe_distribute_dispatch_v2" in names
    fused = [
        name
        for name in names
        if "mega" in name or "fused_moe" in name or ("dispatch" in name and "combine" in name)
    ]
    assert fused == []


@pytest.mark.parametrize("version", SUPPORTED_WHEELS)
def test_rows_travel_by_arguments_that_every_wheel_has(version: str) -> None:
    """Their schemas differ: `x_dtype` and `k` came later."""
    contract = install(family="A2")
    before = len(contract.calls)
    x = torch.empty(8, 1024, dtype=torch.bfloat16, device="meta")
    ids = torch.empty(8, 4, dtype=torch.int64, device="meta")
    rows, index, _ = permutation.permute_rows(x, ids, 5)
    permutation.combine_rows(rows, index, torch.empty(8, 4, device="meta"), True)
    for family in FAMILIES:
        dispatch_and_combine(family, active=True)
    calls = contract.calls[before:]
    assert {call.op for call in calls} >= {
        "npu_moe_init_routing_v2",
        "npu_moe_finalize_routing",
        "npu_moe_distribute_dispatch_v2",
        "npu_moe_distribute_combine_v2",
    }
    schemas = schemas_of(version)
    for call in calls:
        arguments = torch._C.parse_schema(f"npu::{schemas[call.op]}").arguments
        assert set(call.arguments) <= {one.name for one in arguments}, call.op
        needed = {one.name for one in arguments if not one.has_default_value()}
        assert needed <= set(call.arguments), call.op


def test_every_call_in_the_sources_is_reached() -> None:
    dispatch_and_combine("A3", active=True)
    assert unreached_calls("ascend_fused_moe") == []
