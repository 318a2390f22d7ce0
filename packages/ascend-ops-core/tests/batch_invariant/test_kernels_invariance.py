"""The Triton kernels give a row the same bits whatever the batch, in the interpreter."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.devices import device_family
from ascend_ops_core.testing.interpreter import interpreter

pytestmark = pytest.mark.interpreter


@pytest.mark.usefixtures("rowwise_dot")
@pytest.mark.parametrize("sizes", [(150, 40)], ids=str, indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str, indirect=True)
def test_a_row_has_the_same_bits_in_every_batch(
    rows_and_call, assert_rows_invariant, operation: str
) -> None:
    rows, call = rows_and_call("kernels")
    # A batch of products has one row in each tile, so that 65 of them show nothing new.
    few = {"batches": (1, 2, 3, 17)} if operation == "bmm batches" else {}
    with device_family("A2"), interpreter():
        assert_rows_invariant(call, rows, **few)


def test_wide_rows(assert_rows_invariant) -> None:
    from ascend_ops_core.ops.batch_invariant.reductions import kernels

    rows = torch.randn(4, 9000)
    with device_family("A2"), interpreter():
        for call in (
            lambda x: kernels.softmax_batch_invariant(x, -1),
            lambda x: kernels.rms_norm_batch_invariant(x, None, 1e-6),
            lambda x: kernels.mean_batch_invariant(x, -1, True),
        ):
            assert_rows_invariant(call, rows, (1, 2, 3, 17))
