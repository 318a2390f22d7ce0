"""Graphs of the simulated device: what a replay does, and the mistakes that are caught."""

from __future__ import annotations

import gc

import pytest
import torch
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.testing.simulated_npu import counters, record_host_call
from ascend_ops_core.testing.simulated_npu.graphs import GraphError

pytestmark = pytest.mark.sim


def npu(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).to("npu")


def test_a_replay_reads_what_was_copied_into_the_captured_memory() -> None:
    x, graph = npu(1, 2, 3), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = (x * 2).relu() + x.flip(0)
    for values in ((1.0, 2.0, 3.0), (-4.0, 0.5, 7.0)):
        x.copy_(npu(*values))
        graph.replay()
        given = torch.tensor(values)
        assert torch.equal(y.cpu(), (given * 2).relu() + given.flip(0))


def test_results_are_not_there_before_the_first_replay() -> None:
    x, graph = npu(1, 2), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x + 1
    assert y.cpu().isnan().all()


def test_capturing_changes_no_memory_from_outside() -> None:
    x, total, table = npu(1, 2), npu(10, 10), npu(0, 0, 0, 0)
    where, graph = torch.tensor([1, 3]).to("npu"), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        total += x
        total += x
        table[where] = total
        view = table[1:3]
        view.mul_(2)
    assert total.cpu().tolist() == [10, 10]
    assert table.cpu().tolist() == [0, 0, 0, 0]
    graph.replay()
    assert total.cpu().tolist() == [12, 14]
    assert table.cpu().tolist() == [0, 24, 0, 14]
    graph.replay()
    assert total.cpu().tolist() == [14, 18]


def test_writes_to_memory_of_the_region_are_replayed() -> None:
    x, graph = npu(1, 2, 3, 4), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = torch.zeros_like(x)
        y[1:3] = x[1:3] * 10
        y += 1
    x.copy_(npu(5, 6, 7, 8))
    graph.replay()
    assert y.cpu().tolist() == [1, 61, 71, 1]


def test_kernels_and_fused_operators_are_replayed() -> None:
    x, weight, graph = torch.randn(3, 64).to("npu"), torch.ones(64).to("npu"), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = rms_norm(x, weight, 1e-6)
    x.copy_(torch.randn(3, 64))
    graph.replay()
    assert torch.equal(y.cpu(), rms_norm(x, weight, 1e-6).cpu())
    torch.testing.assert_close(y.cpu(), rms_norm(x.cpu(), weight.cpu(), 1e-6))


def test_a_copy_from_pinned_memory_is_part_of_the_graph() -> None:
    host, x, graph = torch.ones(2, pin_memory=True), npu(0, 0), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        x.copy_(host, non_blocking=True)
        y = x * 3
    host.fill_(2)
    graph.replay()
    assert y.cpu().tolist() == [6, 6]


@pytest.mark.parametrize(
    ("name", "wait"),
    [
        ("item", lambda x: x.sum().item()),
        ("copy to the host", lambda x: x.cpu()),
        ("pageable", lambda x: x.copy_(torch.zeros(2), non_blocking=True)),
        ("nonzero", lambda x: x.nonzero()),
        ("aten::nonzero", lambda x: x[x > 0]),
        ("torch.npu.synchronize", lambda x: torch.npu.synchronize()),
        ("Event.synchronize", lambda x: torch.npu.Event().synchronize()),
        ("Stream.synchronize", lambda x: torch.npu.current_stream().synchronize()),
    ],
)
def test_the_host_must_not_wait_inside(name: str, wait: object) -> None:
    x = npu(1, 2)
    assert callable(wait)
    with (
        pytest.raises(GraphError, match=rf"{name}.*inside a captured region"),
        torch.npu.graph(torch.npu.NPUGraph()),
    ):
        wait(x)
    assert not torch.npu.is_current_stream_capturing()
    assert x.cpu().tolist() == [1, 2]


def test_freed_memory_is_caught_by_the_call_that_uses_it() -> None:
    x, graph = npu(1, 2), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x.exp()
    graph.replay()
    x = npu(3, 4)  # a new tensor in place of the captured one
    gc.collect()
    with pytest.raises(GraphError, match=r"aten::exp.* uses memory from outside .* is gone"):
        graph.replay()
    assert y.shape == x.shape


def test_what_the_program_keeps_of_the_region_is_listed() -> None:
    x, graph = npu(1, 2), torch.npu.NPUGraph()
    kept = {}
    with torch.npu.graph(graph):
        hidden = x * 2
        kept["workspace"] = torch.zeros(3, device="npu")
        y = hidden + 1
    del hidden
    made = {one.address: one for one in graph.made_inside()}
    assert set(made) == {y.data_ptr(), kept["workspace"].data_ptr()}
    assert made[kept["workspace"].data_ptr()].shape == (3,)
    assert made[kept["workspace"].data_ptr()].by.startswith("aten::zero")
    assert made[y.data_ptr()].by.startswith("aten::add")


def test_memory_of_the_region_is_counted_until_reset() -> None:
    gc.collect()
    x = torch.ones(1000, device="npu")
    before = torch.npu.memory_allocated()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = ((x + 1) * 2).sqrt()
    assert graph.pool_bytes > 0
    assert torch.npu.memory_allocated() == before + graph.pool_bytes + y.nbytes
    taken = torch.npu.memory_stats()["allocation.all.allocated"]
    graph.replay()
    assert torch.npu.memory_stats()["allocation.all.allocated"] == taken
    graph.reset()
    assert torch.npu.memory_allocated() == before + y.nbytes


def test_a_host_call_is_recorded_and_its_writes_undone() -> None:
    x, graph = npu(1, 2), torch.npu.NPUGraph()

    def double(alias: torch.Tensor) -> None:
        alias.mul_(2)

    record_host_call("double", double, [], writes=[x])
    assert x.cpu().tolist() == [2, 4]
    with torch.npu.graph(graph):
        record_host_call("double", double, [], writes=[x])
        y = x + 1
    assert x.cpu().tolist() == [2, 4]
    graph.replay()
    assert y.cpu().tolist() == [5, 9]


def test_graphs_do_not_nest_and_are_not_captured_twice() -> None:
    x, graph, other = npu(1), torch.npu.NPUGraph(), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x + 1
    with pytest.raises(GraphError, match="captured already"), torch.npu.graph(graph):
        pass
    with pytest.raises(GraphError, match="part of a graph"), torch.npu.graph(other):
        graph.replay()
    with pytest.raises(GraphError, match="capture a region first"):
        torch.npu.NPUGraph().replay()
    graph.replay()
    assert y.cpu().tolist() == [2]


def test_a_tensor_that_grows_inside_is_refused() -> None:
    x = npu(1, 2)
    with (
        pytest.raises(GraphError, match="resized"),
        torch.npu.graph(torch.npu.NPUGraph()),
    ):
        x.resize_(100)


def test_replays_are_counted_and_their_calls_are_not() -> None:
    x, graph = npu(1, 2), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x + 1
    before = counters()
    graph.replay()
    done = counters() - before
    assert (done.replays, done.operators, done.synchronisations) == (1, 0, 0)
    assert y.cpu().tolist() == [2, 3]


def test_results_of_factories_are_filled_again() -> None:
    """torch makes them empty and lets another operator give them their size."""
    x, graph = npu(1, 2, 3, 4), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x * torch.arange(4, device="npu") + torch.cat((x[2:], x[:2]))
    x.copy_(npu(5, 6, 7, 8))
    for _ in range(2):
        graph.replay()
        assert y.cpu().tolist() == [7, 14, 19, 30]


def test_graphs_of_one_pool_share_its_memory() -> None:
    """They never run at once, so the pool is as large as the one that needs most."""
    gc.collect()
    before, pool = torch.npu.memory_allocated(), torch.npu.graph_pool_handle()
    graphs, kept = [torch.npu.NPUGraph() for _ in range(3)], []
    for graph, size in zip(graphs, (100, 400, 200), strict=True):
        x = torch.ones(size, device="npu")
        with torch.npu.graph(graph, pool=pool):
            kept.append(((x * 2).relu() + 1).sum())
        del x
    results = sum(one.nbytes for one in kept)
    small, large, middle = (graph.pool_bytes for graph in graphs)
    assert small < middle < large
    assert torch.npu.memory_allocated() - before == large + results
    graphs[1].reset()
    assert torch.npu.memory_allocated() - before == middle + results
    del graph, graphs[0], graphs[1]
    gc.collect()
    assert torch.npu.memory_allocated() - before == results
