"""Every parallel form of a linear layer equals the unsharded layer, on groups of any size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_ops_core.testing import assert_close
from ascend_ops_core.testing.simulated_group import SimulatedGroup, on_ranks

pytestmark = pytest.mark.engine

RANKS = (1, 2, 3, 5)
TOKENS = (0, 1, 4)


class Product:
    """A quantization method that does not quantize."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, bias)


def layer(weight: torch.Tensor, bias: torch.Tensor | None, **options: Any) -> SimpleNamespace:
    defaults = {
        "quant_method": Product(),
        "skip_bias_add": False,
        "return_bias": False,
        "gather_output": False,
        "input_is_parallel": True,
        "reduce_results": True,
    }
    return SimpleNamespace(weight=weight, bias=bias, **(defaults | options))


def part(x: torch.Tensor, group: SimulatedGroup, dim: int) -> torch.Tensor:
    return x.chunk(group.world_size, dim)[group.rank_in_group]


@pytest.fixture(params=RANKS)
def ranks(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.fixture(params=TOKENS)
def tokens(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.mark.parametrize("gathers", [True, False])
def test_column(ranks: int, tokens: int, gathers: bool) -> None:
    from ascend_ops_core.vllm.linear.parallel_ops import CustomColumnParallelOp

    x, weight, bias = torch.randn(tokens, 6), torch.randn(ranks * 4, 6), torch.randn(ranks * 4)
    expected = x.double() @ weight.double().T + bias.double()

    def one(group: SimulatedGroup) -> torch.Tensor:
        shard = layer(part(weight, group, 0), part(bias, group, 0), gather_output=gathers)
        return CustomColumnParallelOp(shard, group).apply(x)

    got = on_ranks(ranks, one)
    whole = got if gathers else [torch.cat(got, -1)]
    for output in whole:
        assert_close(output, expected)


@pytest.mark.parametrize("split", [True, False])
def test_row(ranks: int, tokens: int, split: bool) -> None:
    from ascend_ops_core.vllm.linear.parallel_ops import CustomRowParallelOp

    x, weight, bias = torch.randn(tokens, ranks * 4), torch.randn(5, ranks * 4), torch.randn(5)
    expected = x.double() @ weight.double().T + bias.double()

    def one(group: SimulatedGroup) -> torch.Tensor:
        shard = layer(part(weight, group, 1), bias, input_is_parallel=split)
        return CustomRowParallelOp(shard, group).apply(part(x, group, 1) if split else x)

    for output in on_ranks(ranks, one):
        assert_close(output, expected)


def test_row_that_leaves_the_sum_to_its_caller(ranks: int) -> None:
    from ascend_ops_core.vllm.linear.parallel_ops import CustomRowParallelOp

    x, weight = torch.randn(3, ranks * 4), torch.randn(5, ranks * 4)

    def one(group: SimulatedGroup) -> torch.Tensor:
        shard = layer(part(weight, group, 1), None, reduce_results=False)
        y = CustomRowParallelOp(shard, group).apply(part(x, group, 1))
        assert group.calls == []
        return y

    assert_close(sum(on_ranks(ranks, one)), x.double() @ weight.double().T)


def test_mlp_of_ranks_with_their_own_tokens(ranks: int, tokens: int) -> None:
    from ascend_ops_core.vllm.linear.parallel_ops import MLPColumnParallelOp, MLPRowParallelOp

    x, up, down = (
        torch.randn(ranks, tokens, 6),
        torch.randn(ranks * 4, 6),
        torch.randn(6, ranks * 4),
    )
    bias = torch.randn(6)
    hidden = (x.double() @ up.double().T).relu()
    expected = hidden @ down.double().T + bias.double()

    def one(group: SimulatedGroup) -> torch.Tensor:
        first = MLPColumnParallelOp(layer(part(up, group, 0), None), group)
        second = MLPRowParallelOp(layer(part(down, group, 1), bias), group)
        return second.apply(first.apply(x[group.rank_in_group]).relu())

    assert_close(torch.stack(on_ranks(ranks, one)), expected)


def test_o_proj_of_ranks_with_their_own_tokens(ranks: int, tokens: int) -> None:
    from ascend_ops_core.vllm.linear.parallel_ops import OProjRowParallelOp

    x, weight = torch.randn(ranks, tokens, ranks * 4), torch.randn(6, ranks * 4)

    def one(group: SimulatedGroup) -> torch.Tensor:
        shard = layer(part(weight, group, 1), None)
        return OProjRowParallelOp(shard, group).apply(x[group.rank_in_group])

    assert_close(torch.stack(on_ranks(ranks, one)), x.double() @ weight.double().T)


def test_dsv4_o_proj(ranks: int, tokens: int) -> None:
    from ascend_ops_core.vllm.linear.parallel_ops import (
        DSV4OProjColumnParallelOp,
        DSV4OProjRowParallelOp,
    )

    groups, inner, latent = 2 * ranks, 5, 3
    x = torch.randn(ranks, tokens, groups, inner)
    first, second = torch.randn(groups * latent, inner), torch.randn(6, groups * latent)
    hidden = torch.einsum("rtgk,gnk->rtgn", x, first.view(groups, latent, inner)).flatten(2)
    expected = hidden.double() @ second.double().T

    def one(group: SimulatedGroup) -> torch.Tensor:
        column = DSV4OProjColumnParallelOp(layer(part(first, group, 0), None), group)
        row = DSV4OProjRowParallelOp(layer(part(second, group, 1), None), group)
        return row.apply(column.apply(x[group.rank_in_group]))

    assert_close(torch.stack(on_ranks(ranks, one)), expected, scale=4)


@pytest.mark.parametrize(
    "name",
    [
        "ShardedCPColumnParallelOp",
        "SharedExpertColumnParallelOp",
        "SharedExpertRowParallelOp",
        "CustomReplicatedOp",
    ],
)
def test_whole_weights_communicate_nothing(name: str) -> None:
    from ascend_ops_core.vllm.linear import parallel_ops

    x, weight, bias = torch.randn(3, 4, 6), torch.randn(5, 6), torch.randn(5)

    def one(group: SimulatedGroup) -> torch.Tensor:
        whole = layer(weight, bias, gather_output=True, input_is_parallel=False)
        op = getattr(parallel_ops, name)(whole, group)
        assert (op.tp_rank, op.tp_size) == (0, 1)
        output = op.apply(x[group.rank_in_group])
        assert group.calls == []
        return output

    expected = x.double() @ weight.double().T + bias.double()
    assert_close(torch.stack(on_ranks(3, one)), expected)


def test_a_skipped_bias_is_returned() -> None:
    from ascend_ops_core.vllm.linear.parallel_ops import CustomColumnParallelOp

    x, weight, bias = torch.randn(2, 6), torch.randn(5, 6), torch.randn(5)
    shard = layer(weight, bias, skip_bias_add=True, return_bias=True)
    output, skipped = on_ranks(1, lambda group: CustomColumnParallelOp(shard, group).apply(x))[0]
    assert_close(output, x.double() @ weight.double().T)
    assert skipped is bias


def test_features_that_the_ranks_cannot_share() -> None:
    from ascend_ops_core import InvalidInputError
    from ascend_ops_core.vllm.linear.parallel_ops import CustomRowParallelOp

    shard = layer(torch.randn(5, 2), None, input_is_parallel=False)
    with pytest.raises(InvalidInputError, match="same number of features"):
        on_ranks(2, lambda group: CustomRowParallelOp(shard, group).apply(torch.randn(1, 5)))


class Dynamic8Bit:
    """A small W8A8 method: the two steps, and both in one."""

    def quantize(self, layer: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().amax(-1).clamp_min(1e-9) / 127
        return (x / scale[:, None]).round().to(torch.int8), scale

    def matmul(self, layer, x, scale, bias, dtype):  # type: ignore[no-untyped-def]
        y = x.float() @ layer.weight.float().T * scale[:, None]
        return (y if bias is None else y + bias).to(dtype)

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self.matmul(layer, *self.quantize(layer, x), bias, x.dtype)


@pytest.mark.parametrize("method", [Product, Dynamic8Bit])
@pytest.mark.parametrize(
    "form",
    [
        "CustomColumnParallelOp",
        "CustomRowParallelOp",
        "MLPRowParallelOp",
        "OProjRowParallelOp",
        "MLPColumnParallelOp",
    ],
)
def test_cv_wrapper_is_the_layer_in_two_steps(method: type, form: str) -> None:
    from ascend_ops_core.vllm.linear import CVLinearWrapper, parallel_ops

    x = torch.randn(3, 6, 6)

    def one(group: SimulatedGroup) -> None:
        wide = form == "OProjRowParallelOp" or form.endswith("ColumnParallelOp")
        shard = layer(
            torch.randn(4, 2 if form == "OProjRowParallelOp" else 6),
            torch.randn(4),
            quant_method=method(),
            tp_size=3,
            gather_output=wide,
            prefix="a.b",
        )
        shard.custom_op = getattr(parallel_ops, form)(shard, group)
        wrapper = CVLinearWrapper(shard)
        assert wrapper.is_w8a8_dynamic == (method is Dynamic8Bit)
        assert wrapper.communication == form
        assert wrapper.prefix == "a.b"
        with pytest.raises(AttributeError):
            _ = wrapper.nothing
        own = x[group.rank_in_group]
        quantized = wrapper.quantize(own)
        assert (quantized[0].dtype == torch.int8) == wrapper.is_w8a8_dynamic
        expected = shard.custom_op.apply(own)
        assert torch.equal(wrapper.matmul(quantized, own.dtype), expected)
        assert torch.equal(wrapper(own), expected)

    on_ranks(3, one)


@pytest.mark.parametrize(
    ("options", "communication"),
    [
        ({"tp_size": 1, "reduce_results": True}, "none"),
        ({"tp_size": 2, "reduce_results": True}, "all_reduce"),
        ({"tp_size": 2, "reduce_results": False}, "none"),
        ({"tp_size": 2, "gather_output": True}, "all_gather"),
    ],
    ids=str,
)
def test_cv_wrapper_sees_what_vllms_layers_communicate(
    options: dict[str, Any], communication: str
) -> None:
    from ascend_ops_core.vllm.linear import CVLinearWrapper

    plain = SimpleNamespace(quant_method=Product(), **options)
    assert CVLinearWrapper(plain).communication == communication
