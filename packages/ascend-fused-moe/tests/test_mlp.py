"""The experts' networks in every mode, against transformers' experts."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_fused_moe.group_list import GroupList, GroupListKind
from ascend_fused_moe.mlp import (
    Activation,
    ActivationKind,
    MoEMlpComputeInput,
    MoEWeights,
    build_mlp_compute_input,
    plan_mlp,
    quant_apply_mlp,
    unified_apply_mlp,
)
from ascend_fused_moe.quant_params import MoEQuantParams, QuantMode, build_quant_params
from ascend_fused_moe.testing.quantized import FORMAT_ERRORS, quantized_weight, relative_error
from ascend_ops_core import InvalidInputError
from ascend_ops_core.devices import facts_of
from ascend_ops_core.ops.quantization import dynamic_quantize
from ascend_ops_core.testing import assert_close
from torch.nn import functional as F

EXPERTS, HIDDEN, INTER = 3, 128, 64
COUNTS = [5, 0, 12]


def groups_of(counts: list[int], kind: GroupListKind = GroupListKind.COUNTS) -> GroupList:
    """The same groups, said in one way or the other."""
    values = torch.tensor(counts)
    return GroupList(values if kind is GroupListKind.COUNTS else values.cumsum(0), kind)


def owners_of(counts: list[int]) -> torch.Tensor:
    """The expert of each row."""
    return torch.tensor([g for g, n in enumerate(counts) for _ in range(n)], dtype=torch.long)


def plain_weights(scale: float = 1.0) -> MoEWeights:
    return MoEWeights(
        torch.randn(EXPERTS, 2 * INTER, HIDDEN) * scale / HIDDEN**0.5,
        torch.randn(EXPERTS, HIDDEN, INTER) / INTER**0.5,
    )


def weights_in(mode: QuantMode, plain: MoEWeights, **options: Any) -> MoEWeights:
    name = build_quant_params(mode).weights
    w13, w13_scale = quantized_weight(plain.w13, name, **options)
    w2, w2_scale = quantized_weight(plain.w2, name, **options)
    return MoEWeights(w13, w2, w13_scale, w2_scale)


def deepseek(plain: MoEWeights, rows: torch.Tensor, limit: float | None) -> torch.Tensor:
    """transformers' DeepSeek-V4 experts, each row with its own expert and weight 1."""
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Experts

    config = SimpleNamespace(
        num_local_experts=EXPERTS,
        hidden_size=HIDDEN,
        intermediate_size=INTER,
        hidden_act="silu",
        swiglu_limit=limit or float("inf"),
        _experts_implementation="eager",
    )
    experts = DeepseekV4Experts(config)
    experts.gate_up_proj.data, experts.down_proj.data = plain.w13, plain.w2
    with torch.no_grad():
        ids = owners_of(COUNTS)[:, None]
        return experts(rows.float(), ids, torch.ones(ids.shape))


@pytest.mark.parametrize("limit", [None, 0.0, 0.5])
@pytest.mark.parametrize("kind", list(GroupListKind), ids=lambda kind: kind.name)
@pytest.mark.parametrize("behind", [0, 4])
def test_plain_experts_equal_transformers(
    kind: GroupListKind, behind: int, limit: float | None
) -> None:
    """Also where rows lie behind the groups; they hold NaN, which reaches no other row."""
    plain, rows = plain_weights(), torch.randn(17, HIDDEN)
    padded = torch.cat([rows, torch.full((behind, HIDDEN), float("nan"))])
    given = build_mlp_compute_input(
        padded, groups_of(COUNTS, kind), plain, activation=Activation(limit=limit)
    )
    actual = unified_apply_mlp(given)
    assert_close(actual[:17], deepseek(plain, rows, limit), scale=4)
    assert actual[17:].eq(0).all()


@pytest.mark.parametrize("mode", ["none", *FORMAT_ERRORS])
def test_no_rows(mode: str) -> None:
    plain = plain_weights()
    quant = build_quant_params(mode)
    weights = weights_in(quant.mode, plain) if quant.is_quant else plain
    given = build_mlp_compute_input(
        torch.empty(0, HIDDEN), groups_of([0, 0, 0]), weights, quant=quant
    )
    assert unified_apply_mlp(given).shape == (0, HIDDEN)


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("mode", FORMAT_ERRORS)
def test_quantised_experts_are_near_the_float_ones(mode: str, limit: float | None) -> None:
    """Below the format's error, and above a tenth of it, so that something was quantised."""
    plain, rows = plain_weights(), torch.randn(17, HIDDEN)
    quant = build_quant_params(mode)
    given = build_mlp_compute_input(
        rows,
        groups_of(COUNTS),
        weights_in(quant.mode, plain),
        quant=quant,
        activation=Activation(limit=limit),
    )
    error = relative_error(unified_apply_mlp(given), deepseek(plain, rows, limit))
    assert FORMAT_ERRORS[mode] / 10 < error < FORMAT_ERRORS[mode]


@pytest.mark.parametrize("mode", ["w8a8", "fp8_block", "mxfp8", "mxfp4", "w4a8_mxfp"])
def test_zero_and_saturated_blocks(mode: str) -> None:
    """Zeros give zeros; a huge value, to which its block scales, stays in its row."""
    plain, quant = plain_weights(), build_quant_params(mode)
    plain.w13[0, :, :32] = 0
    plain.w2[2] = 0
    weights = weights_in(quant.mode, plain)
    rows = torch.randn(17, HIDDEN)
    rows[1] = 0
    usual = unified_apply_mlp(
        build_mlp_compute_input(rows, groups_of(COUNTS), weights, quant=quant)
    )
    assert usual.isfinite().all()
    assert usual[1].eq(0).all()
    assert usual[5:].eq(0).all()
    changed = rows.clone()
    changed[0, 40] = 3e4
    given = build_mlp_compute_input(changed, groups_of(COUNTS), weights, quant=quant)
    actual = unified_apply_mlp(given)
    assert actual.isfinite().all()
    assert torch.equal(actual[1:], usual[1:])
    assert not torch.equal(actual[0], usual[0])


@pytest.mark.parametrize("gate", [-50.0, 50.0])
@pytest.mark.parametrize("up", [-50.0, 50.0])
@pytest.mark.parametrize("mode", ["none", "w8a8", "fp8_block", "mxfp8"])
def test_the_limit_acts_before_the_quantisation(mode: str, gate: float, up: float) -> None:
    """Bug case 7: the gate is bounded above alone, up on both sides, then rows are quantised."""
    quant = build_quant_params(mode)
    w13 = torch.zeros(1, 64, 32)
    w13[0, :32, 0], w13[0, 32:, 1] = 1, 1
    plain = MoEWeights(w13, torch.eye(32)[None])
    weights = weights_in(quant.mode, plain) if quant.is_quant else plain
    rows = torch.zeros(2, 32)
    rows[0, 0], rows[0, 1] = gate, up
    rows[1, 0], rows[1, 1] = min(gate, 10), max(-10, min(up, 10))

    def run(limit: float | None) -> torch.Tensor:
        activation = Activation(limit=limit)
        given = build_mlp_compute_input(
            rows, groups_of([2]), weights, quant=quant, activation=activation
        )
        return unified_apply_mlp(given)

    limited = run(10.0)
    expected = F.silu(torch.tensor(min(gate, 10.0))) * max(-10.0, min(up, 10.0))
    bound = FORMAT_ERRORS.get(mode, 1e-6)
    assert torch.allclose(limited[0], expected, rtol=bound, atol=1e-6)
    assert torch.equal(run(0.0), run(None))
    assert not torch.equal(run(None)[0], limited[0])


def test_gpt_oss_experts_in_fp4_equal_transformers() -> None:
    """Biases, alternating channels, and weights that transformers' own loader unpacks."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    quant = build_quant_params(QuantMode.W4A16_MXFP)
    packed = replace(
        weights_in(quant.mode, plain_weights()),
        w13_bias=torch.randn(EXPERTS, 2 * INTER),
        w2_bias=torch.randn(EXPERTS, HIDDEN),
    )
    config = SimpleNamespace(
        num_local_experts=EXPERTS,
        hidden_size=HIDDEN,
        intermediate_size=INTER,
        swiglu_alpha=1.702,
        swiglu_limit=7.0,
        _experts_implementation="eager",
    )
    experts = GptOssExperts(config)
    for name, values, scale in (
        ("gate_up_proj", packed.w13, packed.w13_scale),
        ("down_proj", packed.w2, packed.w2_scale),
    ):
        blocks = values.unflatten(-1, (-1, 16))
        unpacked = convert_moe_packed_tensors(blocks, scale, dtype=torch.float32)
        setattr(experts, name, torch.nn.Parameter(unpacked))
    experts.gate_up_proj_bias.data, experts.down_proj_bias.data = packed.w13_bias, packed.w2_bias
    rows, ids = torch.randn(17, HIDDEN), owners_of(COUNTS)[:, None]
    with torch.no_grad():
        expected = experts(rows, ids, torch.ones(ids.shape))
    activation = Activation(ActivationKind.SWIGLU_OAI, limit=7.0)
    given = build_mlp_compute_input(
        rows, groups_of(COUNTS), packed, quant=quant, activation=activation
    )
    assert_close(unified_apply_mlp(given), expected, scale=8)


@pytest.mark.parametrize("linear", [None, 0.4])
def test_situ(linear: float | None) -> None:
    """Kimi-K3's activation, channel by channel."""
    gate_up = 3 * torch.randn(5, 6)
    activation = Activation(ActivationKind.SITU, beta=0.7, linear_beta=linear)
    actual = activation(gate_up)
    for t, c in itertools.product(range(5), range(3)):
        gate, up = float(gate_up[t, c]), float(gate_up[t, 3 + c])
        up = linear * math.tanh(up / linear) if linear else up
        expected = 0.7 * math.tanh(gate / 0.7) / (1 + math.exp(-gate)) * up
        assert math.isclose(float(actual[t, c]), expected, rel_tol=1e-5, abs_tol=1e-6)
    assert activation(gate_up.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(InvalidInputError, match=r"beta=0, .*positive"):
        Activation(ActivationKind.SITU, beta=0)
    with pytest.raises(InvalidInputError, match=r"limit=7.*has no limit"):
        Activation(ActivationKind.SITU, limit=7)
    with pytest.raises(InvalidInputError, match=r"'swiglu_step' with limit None"):
        Activation(ActivationKind.SWIGLU_STEP)


LIMITED = [kind for kind in ActivationKind if kind is not ActivationKind.SITU]


@pytest.mark.parametrize("kind", LIMITED, ids=lambda kind: kind.value)
def test_activations(kind: ActivationKind) -> None:
    plain, rows = plain_weights(3.0), torch.randn(17, HIDDEN)
    given = build_mlp_compute_input(
        rows, groups_of(COUNTS), plain, activation=Activation(kind, limit=0.7)
    )
    expected = []
    for row, expert in zip(rows, owners_of(COUNTS), strict=True):
        gate_up = plain.w13[expert] @ row
        gate, up = gate_up[:INTER], gate_up[INTER:]
        if kind is ActivationKind.SWIGLU_OAI:
            gate, up = gate_up[0::2], gate_up[1::2]
        bounded, up = gate.clamp(max=0.7), up.clamp(-0.7, 0.7)
        if kind is ActivationKind.SWIGLU:
            hidden = F.silu(bounded) * up
        elif kind is ActivationKind.SWIGLU_STEP:
            hidden = F.silu(gate).clamp(max=0.7) * up
        else:
            hidden = bounded * torch.sigmoid(1.702 * bounded) * (up + 1)
        expected.append(plain.w2[expert] @ hidden)
    assert_close(unified_apply_mlp(given), torch.stack(expected), scale=4)


@pytest.mark.parametrize("size", [None, 16])
def test_every_way_through_the_activation_agrees(size: int | None) -> None:
    """What is fused differs in rounding alone; with a list of running sums as with counts."""
    plain, rows = plain_weights(), torch.randn(17, HIDDEN)
    mode = QuantMode.W8A8 if size is None else QuantMode.W4A8
    weights = weights_in(mode, plain, group_size=size)
    if size is None:
        weights = replace(weights, w13_nz=weights.w13.transpose(1, 2).contiguous())
    quant = build_quant_params(mode, group_size=size)
    expected = deepseek(plain, rows, None)
    for kind in GroupListKind:
        given = build_mlp_compute_input(rows, groups_of(COUNTS, kind), weights, quant=quant)
        plan = plan_mlp(given, None)
        fusions = ["swiglu_quant", "separate"]
        if size is None:
            fusions = ["gmm_swiglu_quant", "dequant_swiglu_quant", *fusions]
        assert plan.chosen == fusions[0]
        results = [quant_apply_mlp(given, replace(plan, chosen=one)) for one in fusions]
        for result in results:
            assert relative_error(result, expected) < FORMAT_ERRORS[mode.value]
            assert relative_error(result, results[-1]) < FORMAT_ERRORS[mode.value] / 10


def test_rows_that_a_dispatcher_has_quantised() -> None:
    plain, rows = plain_weights(), torch.randn(17, HIDDEN)
    weights, quant = weights_in(QuantMode.W8A8, plain), build_quant_params("w8a8")
    given = build_mlp_compute_input(rows, groups_of(COUNTS), weights, quant=quant)
    values, scale = dynamic_quantize(rows)
    quantised = build_mlp_compute_input(
        values, groups_of(COUNTS), weights, rows_scale=scale, quant=quant, dtype=torch.float32
    )
    assert torch.equal(unified_apply_mlp(given), unified_apply_mlp(quantised))
    with pytest.raises(InvalidInputError, match="without a dtype for the result"):
        build_mlp_compute_input(values, groups_of(COUNTS), weights, rows_scale=scale, quant=quant)


def _pass(mode: str = "w8a8", *, limit: float | None = None, **changes: Any) -> MoEMlpComputeInput:
    quant = build_quant_params(mode)
    weights = weights_in(quant.mode, plain_weights())
    if mode == "w8a8":
        changes = {"w13_nz": weights.w13.transpose(1, 2).contiguous(), **changes}
    weights = replace(weights, **changes)
    rows = torch.randn(17, HIDDEN).bfloat16()
    return build_mlp_compute_input(
        rows, groups_of(COUNTS), weights, quant=quant, activation=Activation(limit=limit)
    )


@pytest.mark.parametrize(
    ("family", "given", "chosen", "reasons"),
    [
        ("A2", {}, "gmm_swiglu_quant", []),
        ("A5", {}, "gmm_swiglu_quant", []),
        ("A3", {"limit": 10.0}, "dequant_swiglu_quant", ["limit of 10.0"]),
        ("A5", {"limit": 10.0}, "swiglu_quant", ["limit of 10.0", "A5.*int32 on A2, A3"]),
        ("A2", {"w13_nz": None}, "dequant_swiglu_quant", ["FRACTAL_NZ"]),
        ("A2", {"w13_bias": torch.zeros(3, 2 * INTER)}, "swiglu_quant", ["bias", "bias"]),
        ("A5", {"mode": "mxfp8"}, "separate", ["rows become mxfp8"] * 3),
    ],
)
def test_plans_on_npus(family: str, given: dict[str, Any], chosen: str, reasons: list[str]) -> None:
    plan = plan_mlp(_pass(**given), facts_of(family))
    assert plan.chosen == chosen
    refused = [one.reason for one in plan.decisions if one.reason]
    assert len(refused) == len(reasons)
    for reason, pattern in zip(refused, reasons, strict=True):
        assert re.search(pattern, reason)
    assert chosen in str(plan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w2": torch.randn(3, 128, 60)}, r"w13 \[3, 128, 128\] and w2 \[3, 128, 60\]"),
        ({"w13_bias": torch.zeros(3, 64)}, r"w13_bias of shape \[3, 64\].*\[3, 128\]"),
        ({"w2_scale": torch.zeros(3, 128)}, r"w2 with a scale in mode 'none'"),
        ({"w13": torch.zeros(3, 128, 128, dtype=torch.int8)}, r"w13 of torch.int8"),
    ],
)
def test_weights_that_do_not_belong_together(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        build_mlp_compute_input(
            torch.randn(17, HIDDEN), groups_of(COUNTS), replace(plain_weights(), **change)
        )


def test_more_rows_in_groups_than_there_are() -> None:
    with pytest.raises(InvalidInputError, match="stands for 17 rows, and there are 16"):
        build_mlp_compute_input(torch.randn(16, HIDDEN), groups_of(COUNTS), plain_weights())


def test_group_size_of_int4() -> None:
    weights = weights_in(QuantMode.W4A8, plain_weights(), group_size=32)
    rows = torch.randn(17, HIDDEN)
    with pytest.raises(InvalidInputError, match="group_size is 16"):
        build_mlp_compute_input(
            rows,
            groups_of(COUNTS),
            weights,
            quant=build_quant_params("w4a8", group_size=16),
        )


def test_queries_of_quant_parameters() -> None:
    table = {
        "none": (False, False, False, False, None, None),
        "w8a8": (True, True, False, False, torch.int8, torch.float32),
        "w4a8": (True, True, False, False, torch.int8, torch.float32),
        "fp8_block": (True, False, True, False, torch.float8_e4m3fn, torch.float32),
        "mxfp8": (True, False, True, True, torch.float8_e4m3fn, torch.uint8),
        "mxfp4": (True, False, False, True, torch.uint8, torch.uint8),
        "w4a8_mxfp": (True, False, False, True, torch.float8_e4m3fn, torch.uint8),
        "w4a16_mxfp": (True, False, False, True, None, None),
        "w8a16": (True, False, False, False, None, None),
        "w4a16": (True, False, False, False, None, None),
        "fp8_a16": (True, False, False, False, None, None),
        "mxfp8_a16": (True, False, False, True, None, None),
    }
    assert set(table) == {mode.value for mode in QuantMode}
    for mode, expected in table.items():
        one = build_quant_params(mode)
        queries = one.is_quant, one.is_int_quant, one.is_fp8, one.is_mxfp
        assert (*queries, one.get_dst_type(), one.get_scale_type()) == expected
        assert one.is_w4a4_mxfp == (mode == "mxfp4")
        assert one.use_w4a8_per_channel_gmm_swiglu == (mode == "w4a8")
        one.check_device(facts_of("A5"))
        if one.is_quant and "int" not in one.weights:
            with pytest.raises(InvalidInputError, match="A2 has neither float8 nor FP4"):
                one.check_device(facts_of("A2"))
        else:
            one.check_device(facts_of("A2"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "w3a3"}, "quantisation mode 'w3a3'.*known are none, w8a8"),
        ({"mode": "w8a8", "group_size": 32}, "group_size=32 in mode 'w8a8'"),
        ({"mode": "w4a8", "group_size": 3}, "group_size=3.*even"),
        ({"mode": "w8a8", "mxfp_block": 32}, "microscaling in mode 'w8a8'"),
        ({"mode": "mxfp8", "mxfp_block": 16}, "block=16.*32 columns"),
        ({"mode": "mxfp4", "mxfp_scale_dtype": torch.float32}, "uint8 or float8_e8m0fnu"),
    ],
)
def test_bad_quant_parameters(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        build_quant_params(**arguments)


def test_mxfp_parameters_belong_to_their_modes() -> None:
    with pytest.raises(InvalidInputError, match="mode 'mxfp8' without MoEMxfpParams"):
        MoEQuantParams(QuantMode.MXFP8)
