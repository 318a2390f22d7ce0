"""Memory figures, counters, random numbers, pinned memory, streams, modules."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing import simulated_npu
from ascend_ops_core.testing.simulated_npu import Counters, counters

pytestmark = pytest.mark.sim


@pytest.fixture
def empty() -> int:
    """Bytes in use before the test."""
    gc.collect()
    torch.npu.reset_peak_memory_stats()
    allocated: int = torch.npu.memory_allocated()
    return allocated


def test_memory_is_counted_while_a_tensor_or_a_view_of_it_lives(empty: int) -> None:
    x = torch.empty(1000, device="npu")
    assert torch.npu.memory_allocated() - empty == 4000
    view = x[10:]
    del x
    assert torch.npu.memory_allocated() - empty == 4000
    more = view + 1
    assert torch.npu.memory_allocated() - empty == 4000 + 3960
    del view, more
    assert torch.npu.memory_allocated() == empty


def test_the_peak_is_that_of_what_lived_together(empty: int) -> None:
    for _ in range(100):
        torch.empty(1000, device="npu")
    assert torch.npu.max_memory_allocated() - empty == 4000
    pair = torch.empty(1000, device="npu"), torch.empty(500, device="npu")
    assert torch.npu.max_memory_allocated() - empty == 6000
    del pair
    assert torch.accelerator.memory_allocated() == empty
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == empty


def test_devices_are_counted_apart(empty: int) -> None:
    before = torch.npu.memory_allocated(1)
    kept = torch.empty(256, device="npu:1")
    assert torch.npu.memory_allocated("npu:1") - before == kept.nbytes
    assert torch.npu.memory_allocated() == empty


def test_reserved_memory_is_kept_until_the_cache_is_emptied(empty: int) -> None:
    torch.npu.empty_cache()
    torch.empty(10_000, device="npu")
    assert torch.npu.memory_reserved() - empty == 40_000
    free, total = torch.npu.mem_get_info()
    assert total - free == empty + 40_000
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() == empty
    assert torch.npu.get_device_properties().total_memory == total


def test_more_than_the_device_has_is_refused() -> None:
    _, total = torch.npu.mem_get_info()
    refused = torch.npu.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match="more were asked for"):
        torch.empty(total + 1, dtype=torch.int8, device="npu")
    assert torch.npu.memory_stats()["num_ooms"] == refused + 1


def test_copies_and_waits_are_counted() -> None:
    pinned, pageable = torch.zeros(4, pin_memory=True), torch.zeros(4)
    x = torch.zeros(4, device="npu")
    before = counters()
    x.copy_(pinned, non_blocking=True)
    pinned.copy_(x, non_blocking=True)
    found = counters() - before
    assert (found.host_to_device, found.device_to_host, found.synchronisations) == (1, 1, 0)
    before = counters()
    x.copy_(pageable, non_blocking=True)
    x.cpu()
    x[0].item()
    torch.npu.synchronize()
    x.nonzero()
    x[x > 0]
    found = counters() - before
    assert (found.host_to_device, found.device_to_host, found.synchronisations) == (1, 2, 6)


def test_work_on_the_device_waits_for_nothing() -> None:
    x = torch.ones(4, 4, device="npu")
    index = torch.tensor([1, 0], device="npu")
    before = counters()
    y = (x @ x).softmax(-1)[index]
    found = counters() - before
    assert y.shape == (2, 4)
    assert found.operators > 2
    assert found.allocations >= 2
    assert found == Counters(operators=found.operators, allocations=found.allocations)


def test_seeds_and_states() -> None:
    torch.manual_seed(3)
    first, on_cpu = torch.randn(4, device="npu"), torch.randn(4)
    torch.manual_seed(3)
    assert torch.equal(on_cpu, torch.randn(4))
    assert torch.equal(first.cpu(), torch.randn(4, device="npu").cpu())
    state = torch.npu.get_rng_state()
    second = torch.nn.functional.dropout(torch.ones(64, device="npu"))
    torch.npu.set_rng_state(state)
    assert torch.equal(
        second.cpu(), torch.nn.functional.dropout(torch.ones(64, device="npu")).cpu()
    )


def test_generators_of_the_device() -> None:
    generator = torch.Generator(device="npu:1")
    assert generator.device == torch.device("npu", 1)
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    generator.manual_seed(5)
    state = generator.get_state()
    q = torch.empty(5, device="npu:1").exponential_(generator=generator)
    generator.set_state(state)
    again = torch.empty(5, device="npu:1").exponential_(generator=generator)
    assert torch.equal(q.cpu(), again.cpu())


def test_pinned_memory() -> None:
    for pinned in (torch.empty(4, pin_memory=True), torch.ones(4).pin_memory()):
        assert pinned.is_pinned()
        assert pinned[1:].is_pinned()
        assert pinned.pin_memory() is pinned
    assert not torch.empty(4).is_pinned()
    with pytest.raises(RuntimeError, match="pin"):
        torch.ones(4, device="npu").pin_memory()
    with pytest.raises(RuntimeError, match="pin"):
        torch.empty(4, device="npu", pin_memory=True)


def test_streams_and_events() -> None:
    stream, outer = torch.npu.Stream(), torch.npu.current_stream()
    start, end = torch.npu.Event(enable_timing=True), torch.Event(enable_timing=True)
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() == stream
        start.record()
    assert start.stream == stream
    assert torch.accelerator.current_stream() == outer
    end.record()
    outer.wait_event(start)
    stream.wait_stream(outer)
    assert start.elapsed_time(end) >= 0
    before = counters()
    end.synchronize()
    stream.synchronize()
    torch.accelerator.synchronize()
    assert (counters() - before).synchronisations == 3
    assert isinstance(torch.Stream(device="npu"), torch.Stream)
    torch.ones(3, device="npu").record_stream(stream)
    with pytest.raises(InvalidInputError, match="enable_timing"):
        torch.npu.Event().elapsed_time(end)


def test_a_stream_of_another_device_makes_it_current() -> None:
    with torch.npu.stream(torch.npu.Stream("npu:1")):
        assert torch.npu.current_device() == 1
    assert torch.npu.current_device() == 0


def test_devices_and_properties() -> None:
    assert torch.npu.device_count() == torch.accelerator.device_count() == 2
    assert torch.accelerator.current_accelerator() == torch.device("npu")
    assert torch.npu.get_device_name() == "Ascend910_9382"
    assert torch.npu.get_device_properties(1).vector_core_num > 0
    with pytest.raises(InvalidInputError, match="2 simulated devices"):
        torch.npu.set_device(2)


def test_what_is_not_modelled_says_so() -> None:
    assert not hasattr(torch.npu, "graph_task_group_begin")
    with pytest.raises(AttributeError, match="not modelled"):
        _ = torch.npu.graph_task_group_begin


def test_installing_again() -> None:
    simulated_npu.install("A3", devices=2)
    assert simulated_npu.kernels_mode() == "interpreter"
    with pytest.raises(InvalidInputError, match="another process"):
        simulated_npu.install("A5", devices=2)
    with pytest.raises(InvalidInputError, match="at least 1"):
        simulated_npu.install(devices=0)
    with pytest.raises(InvalidInputError, match="known are"):
        simulated_npu.install(kernels="magic")  # type: ignore[arg-type]


def test_a_device_block_reaches_every_factory() -> None:
    """As it must where nothing entered such a block before the device was installed."""
    program = (
        "import torch\n"
        "from ascend_ops_core.testing import simulated_npu\n"
        "simulated_npu.install('A2', kernels='reference', with_contract=False)\n"
        "with torch.device('npu'):\n"
        "    made = [torch.empty(2), torch.zeros(2), torch.tensor([1]), torch.arange(3)]\n"
        "    made.append(torch.nn.Linear(2, 2).weight)\n"
        "print({str(one.device) for one in made})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "{'npu:0'}\n"


def test_a_copy_to_the_host_that_does_not_wait() -> None:
    x = torch.randn(3, 4, device="npu")
    before = counters()
    copies = [
        x.t().to("cpu", non_blocking=True),
        x[:, ::2].to("cpu", torch.float64, non_blocking=True),
    ]
    done = counters() - before
    assert (done.device_to_host, done.synchronisations) == (2, 0)
    assert all(one.is_pinned() for one in copies)
    assert copies[0].stride() == (1, 4)
    assert torch.equal(copies[0], x.cpu().t())
    assert torch.equal(copies[1], x.cpu()[:, ::2].double())
    assert (counters() - before).synchronisations == 2
