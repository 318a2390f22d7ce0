"""Faults that a captured graph would turn into wrong numbers, each planted and caught by name."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from ascend_attention.layers.output_projection import ExchangedOutputProjection, ProjectionPart
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.static_buffers import StaticBufferError, StaticBuffers
from ascend_ops_core.testing.simulated_npu.graphs import GraphError
from ascend_vllm_plugin.npu.graphs import ACLGraphWrapper, GraphInputError
from vllm.compilation.monitor import set_cudagraph_capturing_enabled
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.forward_context import BatchDescriptor, ForwardContext, override_forward_context

pytestmark = pytest.mark.engine_npu

ROWS = 4


@contextmanager
def decoding(rows: int = ROWS, mode: CUDAGraphMode = CUDAGraphMode.FULL) -> Iterator[None]:
    """A step that vLLM's dispatcher has marked for a graph of so many rows."""
    context = ForwardContext(
        no_compile_layers={},
        attn_metadata={},
        slot_mapping={},
        cudagraph_runtime_mode=mode,
        batch_descriptor=BatchDescriptor(num_tokens=rows, uniform=True),
    )
    with override_forward_context(context):
        yield


class Model(torch.nn.Module):
    """Adds what another rank gathered into a buffer to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers_ = StaticBuffers()
        self.buffers_.add("mtp_hidden", (ROWS, 2), torch.float32, "npu")
        self.fault: Callable[[Model, torch.Tensor], Any] | None = None
        self.kept: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault is not None:
            self.kept = self.fault(self, x)
        return x * 2 + self.buffers_["mtp_hidden"][: x.shape[0]]


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def wrapped(model: Model) -> Iterator[ACLGraphWrapper]:
    wrapper = ACLGraphWrapper(model, VllmConfig(), buffers=[model.buffers_])
    wrapper.graph_pool = torch.npu.graph_pool_handle()
    set_cudagraph_capturing_enabled(True)
    yield wrapper
    wrapper.clear_graphs()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(ROWS, 2).to("npu")


def gather(model: Model, value: float, rows: int = ROWS) -> None:
    model.buffers_.fill("mtp_hidden", torch.full((rows, 2), value).to("npu"))


def test_without_a_fault_every_step_is_computed(
    model: Model, wrapped: ACLGraphWrapper, x: torch.Tensor
) -> None:
    with decoding():
        gather(model, 1)
        assert wrapped(x).cpu().eq(3).all()
        for value in (5.0, 7.0):
            x.fill_(value)
            gather(model, value)
            assert wrapped(x).cpu().eq(3 * value).all()
    assert wrapped.captured_sizes == [ROWS]
    with decoding(mode=CUDAGraphMode.NONE):
        gather(model, 0)
        assert wrapped(x + 1).cpu().eq(16).all()


def test_a_moved_buffer(model: Model, wrapped: ACLGraphWrapper, x: torch.Tensor) -> None:
    with decoding():
        wrapped(x)
        model.buffers_["mtp_hidden"].data = torch.zeros(ROWS, 2, device="npu")
        gather(model, 1)
        with pytest.raises(StaticBufferError, match=r"'mtp_hidden' was at 0x\w+ .* is at 0x"):
            wrapped(x)


def test_a_moved_input(model: Model, wrapped: ACLGraphWrapper, x: torch.Tensor) -> None:
    with decoding():
        wrapped(x)
        gather(model, 1)
        with pytest.raises(GraphInputError, match=r"argument 0 is at 0x\w+, but the graph of 4"):
            wrapped(x.clone())


def test_a_skipped_all_gather(model: Model, wrapped: ACLGraphWrapper, x: torch.Tensor) -> None:
    with decoding():
        wrapped(x)
        gather(model, 1)
        wrapped(x)
        with pytest.raises(StaticBufferError, match="not filled since the last replay: mtp_hidden"):
            wrapped(x)


def test_a_batch_over_capacity(model: Model, wrapped: ACLGraphWrapper, x: torch.Tensor) -> None:
    with decoding():
        wrapped(x)
        before = model.buffers_["mtp_hidden"].cpu()
        with pytest.raises(InvalidInputError, match=r"5 rows.*'mtp_hidden'.*allocated with 4"):
            gather(model, 1, rows=ROWS + 1)
        assert torch.equal(model.buffers_["mtp_hidden"].cpu(), before)
        larger = torch.ones(ROWS + 1, 2).to("npu")
        gather(model, 1)
        with pytest.raises(InvalidInputError, match=r"argument 0 \(5, 2\).*captured with \(4, 2\)"):
            wrapped(larger)


def test_an_allocation_that_outlives_the_graph(
    model: Model, wrapped: ACLGraphWrapper, x: torch.Tensor
) -> None:
    model.fault = lambda _, x: torch.zeros(3, device=x.device)
    with decoding(), pytest.raises(GraphInputError, match=r"aten::zero.* made torch.float32 \[3\]"):
        wrapped(x)
    assert wrapped.captured_sizes == []


def test_a_wait_inside_the_region(model: Model, wrapped: ACLGraphWrapper, x: torch.Tensor) -> None:
    model.fault = lambda _, x: x.sum().item()
    with decoding(), pytest.raises(GraphError, match=r"item\(\) lets the host wait"):
        wrapped(x)
    assert wrapped.captured_sizes == []


def test_a_freed_tensor(model: Model, wrapped: ACLGraphWrapper, x: torch.Tensor) -> None:
    held = [torch.ones(1, device="npu")]

    def add(_: Model, x: torch.Tensor) -> None:
        x.add_(held[0])

    model.fault = add
    with decoding():
        wrapped(x)
        held[0] = torch.zeros(1, device="npu")
        gc.collect()
        gather(model, 1)
        with pytest.raises(GraphError, match=r"aten::add.* uses memory .* is gone"):
            wrapped(x)


def test_another_set_of_inputs(model: Model, wrapped: ACLGraphWrapper, x: torch.Tensor) -> None:
    with decoding():
        wrapped(x)
        gather(model, 1)
        with pytest.raises(GraphInputError, match=r"inputs x for .* captured with argument 0"):
            wrapped(x=x)


class OneRank:
    """A group of this process alone, which makes the collectives of a projection copies."""

    rank_in_group, world_size = 0, 1

    def reduce_scatter(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return x


def projection(capacity: int) -> tuple[ExchangedOutputProjection, ACLGraphWrapper]:
    """A layer that sends its tokens through buffers for ``capacity`` of them."""
    buffers = StaticBuffers()
    part = ProjectionPart((0, 2), (0, 8), (0, 6))
    layer = ExchangedOutputProjection(
        part, 3, 5, torch.float32, OneRank(), buffers, capacity, torch.device("npu")
    )
    for weight in layer.parameters():
        weight.data.normal_()
    wrapper = ACLGraphWrapper(layer.to("npu"), VllmConfig(), buffers=[buffers])
    wrapper.graph_pool = torch.npu.graph_pool_handle()
    set_cudagraph_capturing_enabled(True)
    return layer, wrapper


@pytest.fixture
def rows() -> list[torch.Tensor]:
    """Heads of every token, and their rotation."""
    sizes = ((ROWS, 2, 8), (ROWS, 2), (ROWS, 2))
    return [torch.randn(size).to("npu") for size in sizes]


def test_a_projection_sends_what_the_step_has(rows: list[torch.Tensor]) -> None:
    layer, wrapper = projection(ROWS)
    with decoding():
        for _ in range(3):
            rows[0].normal_()
            got = wrapper(*rows).cpu()
            layer.capacity = 0
            wanted = layer(*rows).cpu()
            layer.capacity = ROWS
            assert torch.equal(got, wanted)
    assert wrapper.captured_sizes == [ROWS]
    wrapper.clear_graphs()


@pytest.mark.parametrize("name", ["o_proj_send", "o_proj_received"])
def test_a_moved_buffer_of_a_projection(name: str, rows: list[torch.Tensor]) -> None:
    layer, wrapper = projection(ROWS)
    with decoding():
        wrapper(*rows)
        moved = layer.static_buffers[name]
        moved.data = moved.clone()
        with pytest.raises(StaticBufferError, match=rf"'{name}' was at 0x\w+ .* is at 0x"):
            wrapper(*rows)
    wrapper.clear_graphs()


def test_a_graph_beyond_the_buffers_of_a_projection(rows: list[torch.Tensor]) -> None:
    """Refused before anything is captured; without a graph the same step runs."""
    layer, wrapper = projection(ROWS - 1)
    with decoding(), pytest.raises(InvalidInputError, match=r"4 rows.*'o_proj_send'.*with 3"):
        wrapper(*rows)
    assert wrapper.captured_sizes == []
    with decoding(mode=CUDAGraphMode.NONE):
        assert wrapper(*rows).shape == (ROWS, 5)
    assert layer.capacity == ROWS - 1


@pytest.mark.parametrize(
    "reported",
    [
        "error code is 207008\n[Error]: Stream resources are insufficient.",
        "New capture stream failed, stream_id=1987, event_id=[-1->70037]",
    ],
)
def test_a_device_without_streams_left(
    model: Model, wrapped: ACLGraphWrapper, x: torch.Tensor, reported: str
) -> None:
    """What CANN reports then, and what it reports otherwise."""

    def fail(*_: Any) -> None:
        raise RuntimeError(reported)

    model.fault = fail
    with decoding(), pytest.raises(InvalidInputError, match="graph of 4 tokens beside 0 others"):
        wrapped(x)
    reported = "error code is 507035, aivec error"
    with decoding(), pytest.raises(RuntimeError, match="507035"):
        wrapped(x)
