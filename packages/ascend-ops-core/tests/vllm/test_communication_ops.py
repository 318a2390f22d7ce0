"""The collectives as operators, their fake results, stand-ins for fusion, and conv3d's layer."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.testing import assert_close
from ascend_ops_core.testing.simulated_group import SimulatedGroup, on_ranks
from torch._subclasses.fake_tensor import FakeTensorMode

pytestmark = pytest.mark.engine

TOKENS, PARTS = (4, 7), 2


def test_gather_and_reduce_in_a_step() -> None:
    from ascend_ops_core.vllm import communication

    whole = torch.randn(sum(TOKENS), 3)

    def one(group: SimulatedGroup) -> tuple[torch.Tensor, torch.Tensor]:
        name = f"ep{group.rank_in_group}"
        communication.register_group(name, group)
        d, t = divmod(group.rank_in_group, PARTS)
        share = [whole[:4], whole[4:]][d].chunk(PARTS)[t]
        assert communication.maybe_all_gather_and_maybe_unpad(share) is share
        with communication.sequence_parallel(name, TOKENS, PARTS):
            assert communication.maybe_pad_and_reduce(share, enabled=False) is share
            gathered = communication.maybe_all_gather_and_maybe_unpad(share)
            return gathered, communication.maybe_pad_and_reduce(gathered)[: len(share)] - 4 * share

    for gathered, difference in on_ranks(4, one):
        assert torch.equal(gathered, whole)
        assert_close(difference, torch.zeros_like(difference))


def test_fake_results_have_the_real_shapes() -> None:
    from ascend_ops_core.vllm import communication

    assert communication.maybe_pad_and_reduce is not None
    ops = torch.ops.ascend_ops_core
    with FakeTensorMode():
        share = torch.empty(4, 3)
        assert ops.all_gather_and_unpad(share, [4, 7], 2, "ep").shape == (11, 3)
        whole = torch.empty(11, 3)
        shapes = [ops.pad_and_reduce(whole, [4, 7], 2, rank, "ep").shape[0] for rank in range(4)]
    assert shapes == [2, 2, 4, 4]


def test_an_unknown_group() -> None:
    from ascend_ops_core.vllm import communication

    with (
        pytest.raises(InvalidInputError, match="nobody"),
        communication.sequence_parallel("nobody", (1,), 1),
    ):
        pass


def test_stand_ins_are_placed_once_and_refuse_to_run() -> None:
    from ascend_ops_core.vllm import communication

    placed = communication.register_dummy_fusion_op()
    try:
        assert communication.register_dummy_fusion_op() == []
        for name in placed:
            stand_in = getattr(torch.ops._C, name)
            assert stand_in.default is stand_in
            with pytest.raises(InvalidInputError, match=name):
                stand_in.default(torch.zeros(1))
    finally:
        for name in placed:
            delattr(torch.ops._C, name)


def test_conv3d_layer_equals_vllms() -> None:
    from ascend_ops_core.vllm.conv3d import AscendConv3dLayer
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        for options in ({"stride": (2, 3, 3)}, {"stride": 2, "padding": 1}, {"groups": 2}):
            layer = AscendConv3dLayer(4, 6, (2, 3, 3), **options)
            layer.weight.data.normal_(std=0.1)
            layer.bias.data.normal_()
            x = torch.randn(2, 4, 4, 7, 6)
            assert_close(layer.forward_oot(x).detach(), layer.forward_native(x).detach())
