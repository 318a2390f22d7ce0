"""What contract mode refuses, and what it records."""

from __future__ import annotations

import sys

import pytest
import torch
from ascend_ops_core.devices import device_family
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.testing.contract import ArgumentFacts, Contract, install

pytestmark = pytest.mark.contract


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def test_a_right_call_gives_the_announced_form_and_is_recorded(contract: Contract) -> None:
    contract.calls.clear()
    y, rstd = torch.ops.npu.npu_rms_norm(_meta(4, 8), _meta(8), epsilon=1e-5)
    assert (y.shape, y.dtype, rstd.shape) == ((4, 8), torch.bfloat16, (4, 1))
    (call,) = contract.calls
    assert call.op == "npu_rms_norm"
    assert call.schema == contract.schemas["npu_rms_norm"]
    assert call.arguments["self"] == ArgumentFacts(torch.bfloat16, (4, 8))
    assert call.arguments["epsilon"] == 1e-5
    assert call.checked
    assert str(call) == "npu_rms_norm(self=bfloat16[4, 8], gamma=bfloat16[8], epsilon=1e-05)"


def test_calls_of_one_form_are_all_recorded_and_all_refused(contract: Contract) -> None:
    """The meta kernel runs for the first of them alone."""
    norm, sinkhorn = torch.ops.npu.npu_rms_norm.default, torch.ops.npu.npu_mhc_sinkhorn.default
    gamma, given = torch.ones(8), [(4, 1e-5), (4, 1e-5), (5, 1e-5), (4, 1e-4), (4, 1e-5)]
    contract.calls.clear()
    for rows, epsilon in given:
        y, rstd = contract.check(norm, (torch.rand(rows, 8), gamma), {"epsilon": epsilon})
        assert (y.shape, y.dtype, rstd.shape) == ((rows, 8), torch.float32, (rows, 1))
    seen = [(one.arguments["self"].shape[0], one.arguments["epsilon"]) for one in contract.calls]
    assert seen == given
    for _ in range(2):
        with pytest.raises(RuntimeError, match="4 or 6 or 8"):
            contract.check(sinkhorn, (torch.zeros(2, 5, 5),), {})


def test_an_unknown_keyword_is_refused(contract: Contract) -> None:
    with pytest.raises(RuntimeError, match="Unknown keyword argument 'eps'"):
        torch.ops.npu.npu_rms_norm(_meta(4, 8), _meta(8), eps=1e-5)


def test_a_position_for_a_keyword_is_refused(contract: Contract) -> None:
    with pytest.raises(RuntimeError, match="positional argument"):
        torch.ops.npu.npu_dynamic_quant(_meta(4, 8), _meta(8))


def test_a_missing_argument_is_refused(contract: Contract) -> None:
    with pytest.raises(RuntimeError, match="missing value for argument 'gamma'"):
        torch.ops.npu.npu_rms_norm(_meta(4, 8))


def test_a_tensor_for_a_list_is_refused(contract: Contract) -> None:
    with pytest.raises(RuntimeError, match=r"Expected a value of type 'List\[Tensor\]'"):
        torch.ops.npu.npu_scatter_list(_meta(4, 8), _meta(4), _meta(4, 8))


def test_an_operator_that_does_not_exist_is_refused(contract: Contract) -> None:
    with pytest.raises(AttributeError, match="npu_rms_norm_v9"):
        _ = torch.ops.npu.npu_rms_norm_v9


def test_what_the_meta_kernel_checks_is_refused(contract: Contract) -> None:
    with pytest.raises(RuntimeError, match="4 or 6 or 8"):
        torch.ops.npu.npu_mhc_sinkhorn(_meta(2, 5, 5, dtype=torch.float32))


def test_an_operator_without_a_meta_kernel_says_so_after_the_schema(contract: Contract) -> None:
    contract.calls.clear()
    with pytest.raises(NotImplementedError, match="no meta kernel"):
        torch.ops.npu.npu_format_cast(_meta(16, 16), 29)
    assert [(one.op, one.checked) for one in contract.calls] == [("npu_format_cast", False)]
    with pytest.raises(RuntimeError, match="missing value"):
        torch.ops.npu.npu_format_cast(_meta(16, 16))


def test_defaults_that_a_meta_kernel_lacks_are_filled_in(contract: Contract) -> None:
    logits = _meta(2, 8, dtype=torch.float32)
    assert torch.ops.npu.npu_top_k_top_p(logits, _meta(2, dtype=torch.float32)).shape == (2, 8)


@pytest.mark.parametrize("family", ["A2", "A3", "A5"])
def test_the_family_is_the_chosen_one(contract: Contract, family: str) -> None:
    with device_family(family):
        torch.ops.npu.npu_swiglu(_meta(4, 8))
    assert contract.calls[-1].family == family


def test_a_rule_of_the_family_is_applied(contract: Contract) -> None:
    with device_family("A2"), pytest.raises(InvalidInputError, match="exists on A5"):
        torch.ops.npu.npu_mhc_sinkhorn(torch.randn(2, 4, 4))
    with device_family("A5"):
        assert torch.ops.npu.npu_mhc_sinkhorn(torch.randn(2, 4, 4))[0].shape == (2, 4, 4)


def test_aten_is_left_alone(contract: Contract) -> None:
    assert contract.foreign_metas == ["aten::matmul_backward", "aten::_convolution"]
    assert contract.orphan_metas == []


def test_dtype_codes_come_from_the_header(contract: Contract) -> None:
    assert contract.dtype_codes["float8_e4m3fn"] == 292
    assert contract.dtype_codes["float8_e8m0fnu"] == 293
    assert contract.dtype_codes["float4_e2m1fn_x2"] == 296


def test_installing_again_is_the_same_and_another_wheel_is_refused(
    contract: Contract, wheels: object
) -> None:
    assert install() is contract
    with pytest.raises(InvalidInputError, match="a process of its own"):
        install(f"{wheels}/2.12.0")


def test_an_unknown_family_is_refused(contract: Contract) -> None:
    with pytest.raises(InvalidInputError, match="known are"):
        install(family="A9")


def test_torch_npu_is_not_left_behind(contract: Contract) -> None:
    assert not [name for name in sys.modules if name.split(".")[0] == "torch_npu"]
