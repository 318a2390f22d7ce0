"""The test helpers themselves can fail."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.testing import TOLERANCES, assert_close, run_python, strict_environment


@pytest.mark.parametrize("dtype", sorted(TOLERANCES, key=str), ids=str)
def test_tolerance_follows_the_dtype(dtype: torch.dtype) -> None:
    bar = TOLERANCES[dtype]
    one = torch.ones(3, dtype=dtype)
    assert_close(one, one.double() + 0.9 * (bar.atol + bar.rtol))
    with pytest.raises(AssertionError):
        assert_close(one, one.double() + 3 * (bar.atol + bar.rtol))


def test_operands_widen_the_tolerance_and_never_narrow_it() -> None:
    wide, one = TOLERANCES[torch.bfloat16], torch.ones(3)
    near, far = (one.double() + part * (wide.atol + wide.rtol) for part in (0.9, 3))
    assert_close(one, near, operands=torch.bfloat16)
    for other, operands in ((near, None), (near, torch.float32), (far, torch.bfloat16)):
        with pytest.raises(AssertionError):
            assert_close(one, other, operands=operands)
    assert_close(one.bfloat16(), near, operands=torch.float32)


def test_nan_shapes_and_unknown_dtypes() -> None:
    nan = torch.tensor([float("nan")])
    assert_close(nan, nan)
    with pytest.raises(AssertionError):
        assert_close(nan, torch.zeros(1))
    with pytest.raises(AssertionError):
        assert_close(torch.zeros(2), torch.zeros(1))
    with pytest.raises(KeyError):
        assert_close(torch.zeros(1, dtype=torch.int32), torch.zeros(1))


def test_fresh_memory_is_nan_on_one_thread_and_both_are_restored() -> None:
    # The conftest's own environment is around this test.
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(2)
    with strict_environment():
        assert torch.empty(5).isnan().all()
        assert torch.ones(2, dtype=torch.bfloat16).new_empty(5).isnan().all()
        assert torch.get_num_threads() == 1
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == 2


def test_run_python_hides_packages_and_reports_failures() -> None:
    code = "import importlib.util; print(importlib.util.find_spec('numpy'))"
    assert run_python(code, missing=["numpy"]) == "None"
    assert run_python(code) != "None"
    with pytest.raises(AssertionError, match="No module named 'numpy'"):
        run_python("import numpy", missing=["numpy"])
