"""SwiGLU with quantised rows (bug case 7: the limit acts before the quantisation)."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core import InvalidInputError
from ascend_ops_core.devices import facts_of
from ascend_ops_core.ops.swiglu_quant import dequant_swiglu_quant, npu, swiglu_quant
from ascend_ops_core.testing import assert_close
from torch.nn import functional as F


def by_rows(
    gate_up: torch.Tensor, used: int, limit: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    values = torch.zeros(rows, width, dtype=torch.int8)
    scales = torch.zeros(rows)
    for r in range(used):
        gate, up = gate_up[r, :width].float(), gate_up[r, width:].float()
        if limit:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        y = F.silu(gate) * up
        scales[r] = y.abs().max() / 127
        if scales[r] > 0:
            values[r] = torch.round(y / scales[r]).to(torch.int8)
    return values, scales


@pytest.mark.oracle("ascend_ops_core::swiglu_quant", "row by row in the test")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("limit", [None, 0.0, 1.0])
@pytest.mark.parametrize("tokens", [0, 1, 3, 17])
def test_equals_rows_one_by_one(tokens: int, limit: float | None, dtype: torch.dtype) -> None:
    gate_up = (3 * torch.randn(tokens, 26)).to(dtype)
    values, scales = swiglu_quant(gate_up, limit=limit)
    expected = by_rows(gate_up, tokens, limit)
    assert torch.equal(values, expected[0])
    assert torch.equal(scales, expected[1])


@pytest.mark.parametrize("gate", [-50.0, 50.0])
@pytest.mark.parametrize("up", [-50.0, 50.0])
def test_the_limit_acts_before_the_quantisation(gate: float, up: float) -> None:
    gate_up = torch.tensor([[gate, 1.0, up, 1.0]])
    values, scales = swiglu_quant(gate_up, limit=10.0)
    limited = torch.tensor([[min(gate, 10.0), 1.0, max(-10.0, min(up, 10.0)), 1.0]])
    expected = swiglu_quant(limited)
    assert torch.equal(values, expected[0])
    assert torch.equal(scales, expected[1])


@pytest.mark.parametrize(
    ("groups", "cumulative", "used"),
    [([2, 0, 3], False, 5), ([2, 2, 5], True, 5), ([0], False, 0), ([9], True, 9)],
)
def test_rows_behind_the_groups_are_not_read(
    groups: list[int], cumulative: bool, used: int
) -> None:
    gate_up = torch.randn(9, 8)
    expected = by_rows(gate_up, used, None)
    gate_up[used:] = float("nan")
    values, scales = swiglu_quant(gate_up, torch.tensor(groups), cumulative)
    assert torch.equal(values, expected[0])
    assert torch.equal(scales, expected[1])


def test_a_row_of_zeros_has_scale_0() -> None:
    values, scales = swiglu_quant(torch.zeros(2, 8))
    assert not values.any()
    assert not scales.any()


@pytest.mark.parametrize(
    ("groups", "cumulative", "text"),
    [
        (torch.tensor([2, 2, 5]), False, r"\[2, 2, 5\] as counts.*at most the 6"),
        (torch.tensor([2, 0, 3]), True, r"\[2, 0, 3\] as running sums"),
        (torch.tensor([-1, 3]), False, r"\[-1, 3\] as counts"),
        (torch.tensor([2], dtype=torch.int32), False, r"int32.*int64"),
        (torch.tensor(2), False, r"\[G\] int64"),
    ],
)
def test_wrong_groups_are_refused(groups: torch.Tensor, cumulative: bool, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        swiglu_quant(torch.zeros(6, 4), groups, cumulative)


def test_wrong_shapes_and_limits_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"shape \[2, 3\].*equal halves"):
        swiglu_quant(torch.zeros(2, 3))
    with pytest.raises(InvalidInputError, match=r"swiglu_limit=-1.*positive"):
        swiglu_quant(torch.zeros(2, 4), limit=-1.0)


def test_limits_of_torch_npu() -> None:
    a2, a5 = facts_of("A2"), facts_of("A5")
    x, groups = torch.zeros(3, 8), torch.tensor([3])
    assert npu.supports_swiglu_quant(a2, x, None, False, None)
    refusals = (
        (npu.supports_swiglu_quant(a5, x, None, False, None), "A5"),
        (npu.supports_swiglu_quant(a2, x, groups, False, None), "groups"),
        (npu.supports_swiglu_quant(a2, x, None, False, 10.0), "limit 10.0"),
        (npu.supports_swiglu_quant(a2, x.double(), None, False, None), "float64"),
        (npu.supports_swiglu_quant(a2, torch.zeros(1, 8194), None, False, None), "8194"),
        (npu.supports_swiglu_quant(a2, x[:0], None, False, None), "empty"),
        (npu.supports_swiglu_quant_triton(a2, x.double(), None, False, None), "float64"),
    )
    for support, reason in refusals:
        assert not support
        assert reason in support.reason


@pytest.mark.oracle("ascend_ops_core::dequant_swiglu_quant", "row by row in the test, float64")
@pytest.mark.parametrize("limit", [None, 1.0])
@pytest.mark.parametrize(
    ("groups", "cumulative", "of_row"),
    [
        (None, False, [0, 0, 0, 0, 0, 0]),
        ([2, 0, 3], False, [0, 0, 2, 2, 2]),
        ([2, 2, 5], True, [0, 0, 2, 2, 2]),
        ([1, 5], False, [0, 1, 1, 1, 1, 1]),
        ([0], True, []),
    ],
)
def test_integers_are_scaled_by_group_and_row(
    groups: list[int] | None, cumulative: bool, of_row: list[int], limit: float | None
) -> None:
    gate_up = torch.randint(-900, 900, (6, 26), dtype=torch.int32)
    weight_scale = torch.rand(len(groups) if groups else 1, 26) * 0.01
    activation_scale = torch.rand(6)
    activation_scale[len(of_row) :] = float("nan")
    listed = None if groups is None else torch.tensor(groups)
    values, scales = dequant_swiglu_quant(
        gate_up, weight_scale, activation_scale, listed, cumulative, limit
    )
    assert values.dtype == torch.int8
    for r in range(6):
        if r >= len(of_row):
            assert not values[r].any()
            assert scales[r] == 0
            continue
        wide = gate_up[r].double() * weight_scale[of_row[r]].double() * activation_scale[r].double()
        gate, up = wide[:13], wide[13:]
        if limit:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        y = gate / (1 + (-gate).exp()) * up
        assert_close(scales[r], (y.abs().max() / 127).float())
        # A quotient next to a half may round to either side.
        assert float((values[r] - y / scales[r].double()).abs().max()) < 0.501


def test_dequant_refuses_scales_of_another_shape_or_dtype() -> None:
    x, weight, row = torch.zeros(3, 8, dtype=torch.int32), torch.ones(1, 8), torch.ones(3)
    with pytest.raises(InvalidInputError, match=r"gate_up of torch.float32.*int32"):
        dequant_swiglu_quant(x.float(), weight, row)
    with pytest.raises(InvalidInputError, match=r"weight_scale.*\[1, 8\].*\[2, 8\]"):
        dequant_swiglu_quant(x, weight, row, torch.tensor([1, 2]))
    with pytest.raises(InvalidInputError, match=r"activation_scale.*\[2\].*\[3\]"):
        dequant_swiglu_quant(x, weight, row[:2])
    with pytest.raises(InvalidInputError, match=r"\[4\] as counts.*at most the 3"):
        dequant_swiglu_quant(x, weight, row, torch.tensor([4]))
    with pytest.raises(InvalidInputError, match=r"shape \[3, 7\].*equal halves"):
        dequant_swiglu_quant(x[:, :7], weight[:, :7], row)


def test_limits_of_torch_npu_on_integers() -> None:
    a2, a5 = facts_of("A2"), facts_of("A5")
    x, weight, row = torch.zeros(3, 128, dtype=torch.int32), torch.ones(1, 128), torch.ones(3)
    groups = torch.tensor([3])
    assert npu.supports_dequant_swiglu_quant(a2, x, weight, row, groups, True, None)
    refusals = (
        (npu.supports_dequant_swiglu_quant(a5, x, weight, row, None, False, None), "A5"),
        (npu.supports_dequant_swiglu_quant(a2, x, weight, row, None, False, 1.0), "limit 1.0"),
        (
            npu.supports_dequant_swiglu_quant(a2, x[:, :126], weight, row, groups, False, None),
            "63 channels with groups",
        ),
        (npu.supports_dequant_swiglu_quant(a2, x[:0], weight, row, None, False, None), "empty"),
    )
    for support, reason in refusals:
        assert not support
        assert reason in support.reason
