"""torch's own operators under the batch-invariant mode, on the CPU's dispatch key."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.ops.batch_invariant import (
    linear_batch_invariant,
    mean_batch_invariant,
    mm_batch_invariant,
    softmax_batch_invariant,
)
from ascend_ops_core.ops.batch_invariant.mode import (
    batch_invariant_mode,
    batch_invariant_mode_enabled,
    disable_batch_invariant_mode,
    enable_batch_invariant_mode,
)
from ascend_ops_core.testing import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:Warning only once for all operators")


@torch.inference_mode()
def test_torch_calls_the_batch_invariant_operators() -> None:
    x, y, bias = torch.randn(5, 70), torch.randn(70, 9), torch.randn(9)
    plain = torch.mm(x, y)
    with batch_invariant_mode("CPU"):
        assert torch.equal(torch.mm(x, y), mm_batch_invariant(x, y))
        assert torch.equal(x @ y, mm_batch_invariant(x, y))
        assert torch.equal(torch.softmax(x, -1), softmax_batch_invariant(x, -1))
        assert torch.equal(x.mean(-1), mean_batch_invariant(x, -1))
        assert torch.equal(torch.addmm(bias, x, y), linear_batch_invariant(x, y.T, bias))
        assert_close(torch.bmm(x[None], y[None])[0], plain)
        assert_close(x.mean((0, 1)), x.double().mean())
        assert_close(torch.addmm(bias[:1], x, y, beta=2), plain + 2 * bias[:1])
        assert_close(x.half().mean(1, dtype=torch.float32), x.half().float().mean(1))
        assert not torch.equal(torch.mm(x, y), plain)
    assert torch.equal(torch.mm(x, y), plain)


def test_enabling_is_explicit_and_reversible() -> None:
    assert not batch_invariant_mode_enabled("CPU")
    enable_batch_invariant_mode("CPU")
    enable_batch_invariant_mode("CPU")
    with batch_invariant_mode("CPU"):
        pass
    assert batch_invariant_mode_enabled("CPU")
    disable_batch_invariant_mode("CPU")
    disable_batch_invariant_mode("CPU")
    assert not batch_invariant_mode_enabled("CPU")


def test_the_npu_is_the_default_device() -> None:
    with batch_invariant_mode():
        assert batch_invariant_mode_enabled()
        assert not batch_invariant_mode_enabled("CPU")
    assert not batch_invariant_mode_enabled()
