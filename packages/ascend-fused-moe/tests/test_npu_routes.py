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


@pytest.mark.parametrize(
    ("family", "changed", "reason"),
    [
        ("A2", {}, ""),
        ("A3", {}, ""),
        ("A5", {}, ""),
        ("A5", {"dtype": torch.float32, "w2": torch.float32}, "float32.*on A5 takes float16"),
        ("310P", {}, "310P, npu_grouped_matmul is documented for A2, A3, A5"),
        ("A2", {"count": 1}, "1 experts.*2 to 1024"),
        ("A2", {"count": 1025}, "1025 experts.*2 to 1024"),
        ("A2", {"w2": torch.float32}, "bfloat16 and torch.float32 beside x of torch.bfloat16"),
        ("A2", {"dtype": torch.float64, "w2": torch.float64}, "x of torch.float64"),
        ("A2", {"hidden": 65536}, "65536 columns.*fewer than 65536"),
    ],
)
def test_choice_of_the_experts(family: str, changed: dict[str, object], reason: str) -> None:
    given = *_experts(**changed), None  # type: ignore[arg-type]
    facts = facts_of(family)
    chosen = EXPERTS.choose(facts, *given).implementation
    assert chosen == ("torch" if reason else "torch_npu")
    assert_matches(EXPERTS.supports("torch_npu", facts, *given).reason, reason)


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
