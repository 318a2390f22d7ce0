"""Which NPU implementation routers and experts choose; their kernels beyond the cases."""

from __future__ import annotations

import re

import pytest
import torch
from ascend_ops_core.devices import facts_of
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import find

TOPK = find("ascend_fused_moe::topk_routing")
EXPERTS = find("ascend_fused_moe::fused_experts")
PRODUCT = find("ascend_fused_moe::grouped_matmul")
BF16 = torch.bfloat16


def assert_matches(text: str, pattern: str) -> None:
    """An empty pattern matches the empty text alone."""
    assert re.search(pattern, text) if pattern else text == ""


def _logits(tokens: int, experts: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(tokens, experts, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("family", "scoring", "renormalize", "experts", "chosen", "reason"),
    [
        ("A2", "sigmoid", True, 256, "torch_npu", ""),
        ("A5", "sigmoid", True, 256, "torch_npu", ""),
        ("A3", "softmax", True, 128, "torch_npu", ""),
        ("A5", "softmax", True, 128, "triton", "softmax on A5.*A2, A3"),
        ("A3", "sqrtsoftplus", True, 256, "triton", "documents softmax and sigmoid"),
        ("A2", "sigmoid", False, 256, "triton", "not renormalised"),
        ("A2", "sigmoid", True, 2, "triton", "2 experts.*3 to 2048"),
        ("A2", "sigmoid", True, 2049, "triton", "2049 experts.*3 to 2048"),
    ],
)
def test_choice_of_the_router(
    family: str, scoring: str, renormalize: bool, experts: int, chosen: str, reason: str
) -> None:
    given = _logits(7, experts), None, 2, scoring, renormalize, 1.0
    facts = facts_of(family)
    assert TOPK.choose(facts, *given).implementation == chosen
    assert_matches(TOPK.supports("torch_npu", facts, *given).reason, reason)


def test_more_experts_than_the_buffer_holds_are_refused() -> None:
    given = _logits(7, 100_000), None, 2, "sqrtsoftplus", True, 1.0
    with pytest.raises(InvalidInputError, match=r"100000 experts take \d+ B, the kernel has"):
        TOPK.choose(facts_of("A2"), *given)


def _experts(
    count: int = 8, dtype: torch.dtype = BF16, w2: torch.dtype = BF16, hidden: int = 64
) -> tuple[object, ...]:
    def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    ids = empty(5, 2, dtype=torch.int64)
    w13 = empty(count, 32, hidden)
    return empty(5, hidden), w13, empty(count, hidden, 16, dtype=w2), empty(5, 2), ids, None, None


F32, F64 = torch.float32, torch.float64


@pytest.mark.parametrize(
    ("family", "changed", "chosen", "reason"),
    [
        ("A2", {}, "torch_npu", ""),
        ("A3", {}, "torch_npu", ""),
        ("A3", {"dtype": F32, "w2": F32}, "torch_npu", ""),
        ("A5", {}, "torch_npu", ""),
        ("A5", {"dtype": F32, "w2": F32}, "triton", "float32.*on A5 takes float16"),
        ("310P", {}, "torch", "310P, npu_grouped_matmul is documented for A2, A3, A5"),
        ("A2", {"count": 1}, "triton", "1 experts.*2 to 1024"),
        ("A2", {"count": 1025}, "triton", "1025 experts.*2 to 1024"),
        ("A2", {"w2": F32}, "torch", "bfloat16 and torch.float32 beside x of torch.bfloat16"),
        ("A2", {"dtype": F64, "w2": F64}, "torch", "x of torch.float64"),
        ("A2", {"hidden": 65536}, "triton", "65536 columns.*fewer than 65536"),
    ],
)
def test_choice_of_the_experts(
    family: str, changed: dict[str, object], chosen: str, reason: str
) -> None:
    given = *_experts(**changed), None, 1.0, 0.0  # type: ignore[arg-type]
    facts = facts_of(family)
    assert EXPERTS.choose(facts, *given).implementation == chosen
    assert_matches(EXPERTS.supports("torch_npu", facts, *given).reason, reason)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"w2": F32}, "bfloat16 and torch.float32.*the kernel takes one dtype"),
        ({"dtype": F64, "w2": F64}, "x of torch.float64, the kernel takes"),
        ({"strided": True}, r"strides \[2048, 1, 32\] and .*the kernel takes dense ones"),
    ],
)
def test_what_the_kernel_of_the_experts_refuses(changed: dict[str, object], reason: str) -> None:
    x, w13, w2, *others = _experts(**{k: v for k, v in changed.items() if k != "strided"})  # type: ignore[arg-type]
    assert isinstance(w13, torch.Tensor)
    if "strided" in changed:
        w13 = torch.empty(8, 64, 32, dtype=w13.dtype, device="meta").transpose(1, 2)
    support = EXPERTS.supports("triton", facts_of("A5"), x, w13, w2, *others, None, 1.0, 0.0)
    assert_matches(support.reason, reason)


@pytest.mark.parametrize(
    ("family", "dtype", "groups", "chosen", "reason"),
    [
        ("A3", F32, 8, "torch_npu", ""),
        ("A5", F32, 8, "triton", "float32.*on A5 takes float16"),
        ("A5", BF16, 1025, "triton", "1025 groups.*at most 1024"),
        ("310P", BF16, 8, "torch", "310P"),
    ],
)
def test_choice_of_the_grouped_product(
    family: str, dtype: torch.dtype, groups: int, chosen: str, reason: str
) -> None:
    x = torch.empty(5, 64, dtype=dtype, device="meta")
    weight = torch.empty(groups, 32, 64, dtype=dtype, device="meta")
    given = x, weight, torch.empty(groups, dtype=torch.int64, device="meta"), False, None
    assert PRODUCT.choose(facts_of(family), *given).implementation == chosen
    assert_matches(PRODUCT.supports("torch_npu", facts_of(family), *given).reason, reason)


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_a_token_outside_the_table_reads_its_first_row(dtype: torch.dtype) -> None:
    from ascend_fused_moe.ops.routing import kernels, reference
    from ascend_ops_core.devices import device_family
    from ascend_ops_core.testing.guards import guarded
    from ascend_ops_core.testing.interpreter import interpreter

    table = torch.tensor([[1, 6, 2], [7, 0, 3]], dtype=torch.int32)
    tokens = torch.tensor([-1, 1, 2, 2**31 - 1], dtype=dtype)
    settings = "sqrtsoftplus", True, 1.0
    logits = torch.randn(4, 8)
    arguments, guards = guarded((logits, tokens, table, *settings))
    with device_family("A2"), interpreter():
        weights, ids = kernels.hash_routing(*arguments)
    for guard in guards:
        guard.assert_fences()
    expected, rows = reference.hash_routing(logits, torch.tensor([0, 1, 0, 0]), table, *settings)
    assert torch.equal(ids, rows)
    torch.testing.assert_close(weights, expected)
