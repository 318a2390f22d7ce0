"""Experts in a captured step on the simulated NPU, for every way that must not ask the host."""

from __future__ import annotations

import pytest
import torch
from ascend_fused_moe.ops.experts import fused_experts, reference
from ascend_ops_core.devices import device_family
from ascend_ops_core.registry import find
from ascend_ops_core.testing import assert_close
from ascend_ops_core.testing.simulated_npu import counters, install

pytestmark = pytest.mark.sim

EXPERTS, TOKENS, LIMIT = 5, 7, 0.7


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    install("A3", devices=2, memory_bytes=64 * 1024**2)


@pytest.mark.parametrize(
    ("family", "dtype", "chosen"),
    [
        ("A3", torch.float32, "torch_npu"),
        ("A5", torch.bfloat16, "torch_npu"),
        ("A5", torch.float32, "triton"),
    ],
)
def test_a_replay_follows_the_routing(family: str, dtype: torch.dtype, chosen: str) -> None:
    """Captured with all tokens at one expert, replayed with them spread, and the other way."""
    torch.manual_seed(3)
    w13 = (torch.randn(EXPERTS, 74, 33) / 6).to(dtype)
    w2 = (torch.randn(EXPERTS, 33, 37) / 6).to(dtype)
    shared = (torch.randn(26, 33) / 6).to(dtype), (torch.randn(33, 13) / 4).to(dtype)
    x, weights = torch.randn(TOKENS, 33).to(dtype), torch.rand(TOKENS, 2)
    routings = [torch.full((TOKENS, 2), 3), torch.rand(TOKENS, EXPERTS).argsort(-1)[:, :2]]
    kept = [one.to("npu") for one in (w13, w2, *shared)]
    given = [one.clone().to("npu") for one in (x, weights, routings[0])]

    def step() -> torch.Tensor:
        return fused_experts(given[0], *kept[:2], *given[1:], LIMIT, (kept[2], kept[3]))

    with device_family(family) as facts:
        operator = find("ascend_fused_moe::fused_experts")
        arguments = given[0], *kept[:2], *given[1:], LIMIT, *kept[2:], 1.0, 0.0
        assert operator.choose(facts, *arguments).implementation == chosen
        step()
        graph, before = torch.npu.NPUGraph(), counters()
        with torch.npu.graph(graph):
            result = step()
        done = counters() - before
        assert (done.device_to_host, done.synchronisations) == (0, 0)
        for ids in (*routings, routings[0]):
            given[0].copy_(x)
            given[2].copy_(ids)
            graph.replay()
            wanted = reference.fused_experts(x, w13, w2, weights, ids, LIMIT, *shared, 1.0, 0.0)
            assert_close(result.cpu(), wanted, scale=4)
            x = -x
