"""How an operator chooses between its kernel and its definition, and what numba's absence does."""

from __future__ import annotations

import importlib.util
import logging

import numpy as np
import pytest
import torch
from ascend_ops_core import cpu_kernels
from ascend_ops_core.cpu_kernels import CpuKernels, follow_torch_threads
from ascend_ops_core.ops import linear as linear_family
from ascend_ops_core.ops import norm as norm_family
from ascend_ops_core.ops import rotary as rotary_family
from ascend_ops_core.testing import assert_close, run_python
from hypothesis import given
from hypothesis import strategies as st

FAMILIES = (linear_family, norm_family, rotary_family)


@pytest.fixture
def no_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "numba" else find(name, *rest),
    )
    monkeypatch.setattr(cpu_kernels, "_missing_reported", False)
    for family in FAMILIES:
        monkeypatch.setattr(family, "_cpu", CpuKernels(family._cpu._module_name))


def compute() -> list[torch.Tensor]:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 16), torch.rand(16)
    cos, sin = torch.randn(3, 4).cos(), torch.randn(3, 4).sin()
    return [
        norm_family.rms_norm(x, weight, 1e-6),
        linear_family.linear(x, torch.randn(5, 16)),
        linear_family.grouped_linear(x.unsqueeze(1), torch.randn(1, 5, 16)),
        rotary_family.rms_norm_rotary(x.unsqueeze(1), weight, 1e-6, cos, sin),
    ]


@pytest.mark.usefixtures("no_numba")
def test_without_numba_the_definition_runs_and_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.WARNING):
        slow = compute()
        compute()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "numba is not installed" in caplog.text
    assert "ascend-ops-core[cpu-kernels]" in caplog.text
    assert all(family._cpu.load() is None for family in FAMILIES)
    monkeypatch.undo()
    for with_kernel, without in zip(compute(), slow, strict=True):
        assert_close(with_kernel, without)


def test_really_missing_numba() -> None:
    code = """
        import torch
        from ascend_ops_core.cpu_kernels import follow_torch_threads
        from ascend_ops_core.ops.norm import rms_norm
        follow_torch_threads()
        print(rms_norm(torch.full((1, 4), 3.0), None, 0.0).tolist())
    """
    assert run_python(code, missing=["numba"]) == "[[1.0, 1.0, 1.0, 1.0]]"


def test_kernels_load_once_and_only_for_plain_cpu_tensors() -> None:
    kernels = CpuKernels("ascend_ops_core.ops.norm.cpu")
    plain, leaf = torch.zeros(1), torch.zeros(1, requires_grad=True)
    assert kernels.usable(plain, None) is kernels.load() is not None
    assert kernels.usable(plain, leaf) is None
    with torch.no_grad():
        assert kernels.usable(plain, leaf) is not None
    with torch.inference_mode():
        assert kernels.usable(leaf) is not None
    assert kernels.usable(torch.zeros(1, device="meta")) is None


def test_a_broken_kernel_module_is_an_error_not_a_slowdown() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        CpuKernels("ascend_ops_core.no_such_module").load()


def test_numba_follows_torch_threads() -> None:
    import numba

    for threads in (1, 2):
        torch.set_num_threads(threads)
        follow_torch_threads()
        assert numba.get_num_threads() == min(threads, numba.config.NUMBA_NUM_THREADS)


def through_kernels(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round float32 bits to bfloat16 bits and widen those again, with the kernels' conversions."""
    from ascend_ops_core.cpu_numeric import bf16_to_f32, f32_to_bf16
    from numba import njit

    @njit
    def convert(x, rounded, widened):  # type: ignore[no-untyped-def]
        for i in range(x.shape[0]):
            rounded[i] = f32_to_bf16(x[i])
            widened[i] = bf16_to_f32(rounded[i])

    values = bits.view(np.float32)
    rounded = np.empty(len(bits), dtype=np.uint16)
    widened = np.empty(len(bits), dtype=np.float32)
    convert(values, rounded, widened)
    return rounded, widened


def test_bfloat16_conversions_equal_torch_for_every_upper_half() -> None:
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    # Below, at and above the midpoint between two bfloat16 numbers, and exact ones.
    bits = np.concatenate([upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    rounded, widened = through_kernels(bits.astype(np.uint32))
    expected = torch.from_numpy(bits.astype(np.uint32).view(np.float32)).bfloat16()
    finite = ~expected.isnan().numpy()
    assert np.array_equal(rounded[finite], expected.view(torch.uint16).numpy()[finite])
    assert np.array_equal(widened[finite], expected.float().numpy()[finite])
    assert np.isnan(widened[~finite]).all()


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=8))
def test_views_share_memory(bits: list[int]) -> None:
    from ascend_ops_core.cpu_numeric import as_numpy

    x = torch.tensor(bits, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    view = as_numpy(x)
    assert view.dtype == np.uint16
    assert view.tolist() == bits
    x[0] = 1.0
    assert view[0] == 0x3F80
