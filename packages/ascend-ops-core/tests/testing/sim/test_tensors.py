"""Tensors of the simulated NPU."""

from __future__ import annotations

import copy
import io
import pickle
import threading

import pytest
import torch
from ascend_ops_core.devices import current_facts
from ascend_ops_core.testing.simulated_npu import to_cpu_alias, to_npu_alias

pytestmark = pytest.mark.sim


def test_values_go_there_and_back() -> None:
    x = torch.arange(12.0).view(3, 4)
    there = x.to("npu")
    assert there.device == torch.device("npu", 0)
    assert there.is_npu
    assert torch.equal((there @ there.T).cpu(), x @ x.T)


@pytest.mark.parametrize("other", [torch.zeros(3), torch.zeros(3, 1)])
def test_cpu_and_npu_tensors_do_not_mix(other: torch.Tensor) -> None:
    x = torch.zeros(3, 3, device="npu")
    with pytest.raises(RuntimeError, match="device"):
        _ = x + other
    with pytest.raises(RuntimeError, match="device"):
        torch.cat([x, torch.zeros(3, 3)])
    with pytest.raises(RuntimeError, match="device"):
        torch.nn.functional.linear(x, torch.zeros(3, 3))


def test_a_scalar_tensor_of_the_cpu_is_taken() -> None:
    assert (torch.ones(3, device="npu") + torch.tensor(2.0)).tolist() == [3, 3, 3]


def test_two_devices_do_not_mix_but_copy() -> None:
    here, there = torch.ones(3, device="npu:0"), torch.ones(3, device="npu:1")
    assert (there * 2).device.index == 1
    with pytest.raises(RuntimeError, match="device"):
        _ = here + there
    assert (here + there.to("npu:0")).tolist() == [2, 2, 2]


def test_the_current_device_is_where_new_tensors_go() -> None:
    with torch.npu.device(1):
        assert torch.zeros(2, device="npu").device.index == 1
    assert torch.zeros(2, device="npu").device.index == 0


def test_views_share_storage_and_writes() -> None:
    x = torch.zeros(4, 6, device="npu")
    view = x[1:3, ::2]
    view.fill_(3)
    assert x.sum().item() == 18
    assert view.storage_offset() == 6
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert view[1].as_strided((24,), (1,), 0).sum().item() == 18


def test_bytes_are_seen_as_another_dtype() -> None:
    raw = torch.zeros(64, dtype=torch.int8, device="npu")
    cache = raw.view(torch.bfloat16).view(2, 4, 4)
    cache[1] = 1
    assert raw.cpu().view(torch.bfloat16).float().sum() == 16


def test_as_strided_outside_of_the_storage_is_refused() -> None:
    with pytest.raises(RuntimeError, match="the storage has 4"):
        torch.zeros(4, device="npu").as_strided((5,), (1,), 0)


@pytest.mark.parametrize("shape", [(0,), (3,), (5,)])
def test_out_is_resized_and_filled(shape: tuple[int, ...]) -> None:
    out = torch.empty(shape, device="npu")
    if shape == (5,):
        out = out[:3]
    torch.add(torch.ones(3, device="npu"), 1, out=out)
    assert out.tolist() == [2, 2, 2]


def test_resize_keeps_elements() -> None:
    x = torch.arange(6, device="npu")
    assert x.resize_(20)[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert x.resize_(2, 2).tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e8m0fnu,
        torch.complex64,
        torch.bfloat16,
    ],
)
def test_every_dtype_passes(dtype: torch.dtype) -> None:
    raw = torch.arange(1, 65, dtype=torch.uint8)
    x = (raw % 2 == 0) if dtype == torch.bool else raw.view(dtype)
    back = x.npu().clone()[1:].cpu()
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), x[1:].clone().view(torch.uint8))


def test_lazy_conjugates_and_transforms() -> None:
    x = torch.randn(8, dtype=torch.complex64)
    there = x.npu()
    assert torch.equal(there.conj().cpu(), x.conj())
    assert torch.equal((there.conj() * there).cpu(), x.conj() * x)
    assert torch.equal(there.conj().imag.cpu(), x.conj().imag)
    assert torch.equal(torch.fft.fft(there).cpu(), torch.fft.fft(x))
    there.conj().fill_(1j)
    assert torch.equal(there.cpu(), torch.full((8,), -1j, dtype=torch.complex64))


def test_autograd_gives_the_gradients_of_the_cpu() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.GELU()
    )
    twin = copy.deepcopy(model).npu()
    x = torch.randn(2, 3, 6, 6)
    model(x).square().sum().backward()
    twin(x.npu()).square().sum().backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert other.grad is not None
        assert other.grad.device.type == "npu"
        assert torch.equal(one.grad, other.grad.cpu())


def test_inference_mode_keeps_views_normal() -> None:
    x = torch.zeros(3, 4, device="npu")
    with torch.inference_mode():
        view = x[1:]
        view.add_(1)
        assert torch.ones(3, device="npu").is_inference()
    assert not view.is_inference()
    view.add_(1)
    assert x.sum().item() == 16


def test_copies_and_pickles() -> None:
    module = torch.nn.Linear(3, 4).npu()
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert twin.weight.device.type == "npu"
        assert twin.weight.requires_grad
        assert torch.equal(twin.weight.cpu(), module.weight.cpu())
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    assert torch.load(file)["bias"].device.type == "npu"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions(backend: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ y)[1:] + 1

    torch._dynamo.reset()
    x = torch.randn(3, 3)
    compiled = torch.compile(function, backend=backend)(x.npu(), x.npu())
    assert compiled.device.type == "npu"
    assert torch.equal(compiled.cpu(), function(x, x))


def test_aliases_are_the_same_memory() -> None:
    x = torch.zeros(3, device="npu")
    to_cpu_alias(x)[1] = 5
    assert x.tolist() == [0, 5, 0]
    y = torch.zeros(3)
    to_npu_alias(y)[2] = 7
    assert y.tolist() == [0, 0, 7]


def test_an_operator_of_another_library_does_not_fall_back_to_the_cpu() -> None:
    library = torch.library.Library("ascend_sim_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    with pytest.raises(NotImplementedError, match="never falls back"):
        torch.ops.ascend_sim_test.twice(torch.ones(2, device="npu"))
    assert torch.ops.ascend_sim_test.twice(torch.ones(2)).tolist() == [2, 2]


def test_threads_see_the_device_and_its_family() -> None:
    seen = []

    def look() -> None:
        seen.append((current_facts().family, torch.ones(2, device="npu").sum().item()))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [("A3", 2.0)]
