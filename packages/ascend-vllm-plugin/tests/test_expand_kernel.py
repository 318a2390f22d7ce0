"""vLLM's CPU kernel that spreads sampling parameters over draft tokens, and our repair of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ascend_vllm_plugin.compat.expand_kernel import ExpandKernel

CASES = [
    pytest.param(
        torch.tensor([0.7, 0.0, 1.5]), 0, 1, [0.7, 0.7, 1.0, 1.5, 1.5, 1.5], id="temperature"
    ),
    pytest.param(torch.tensor([5, 0, 9], dtype=torch.int32), 0, 0, [5, 5, 0, 9, 9, 9], id="top-k"),
]


def run(kernel: Any, values: torch.Tensor, replace_from: int, replace_to: int) -> torch.Tensor:
    """Expand three requests with 2, 1 and 3 draft tokens."""
    output = torch.full((6,), -7, dtype=values.dtype)
    cumulative = torch.tensor([2, 3, 6], dtype=torch.int32)
    kernel[(3,)](output, values, cumulative, replace_from, replace_to, MAX_NUM_TOKENS=128)
    return output


@pytest.mark.parametrize(("values", "replace_from", "replace_to", "expected"), CASES)
def test_every_draft_token_gets_its_request_value(
    values: torch.Tensor, replace_from: int, replace_to: int, expected: list[float]
) -> None:
    got = run(ExpandKernel(), values, replace_from, replace_to)
    assert torch.equal(got, torch.tensor(expected, dtype=values.dtype))


def test_requests_without_drafts_get_nothing() -> None:
    output = torch.full((2,), -7.0)
    cumulative = torch.tensor([0, 2, 2], dtype=torch.int32)
    ExpandKernel()[(3,)](output, torch.tensor([0.1, 0.2, 0.3]), cumulative, 0, 1)
    assert output.tolist() == pytest.approx([0.2, 0.2])


@pytest.mark.engine
@pytest.mark.parametrize(("values", "replace_from", "replace_to", "expected"), CASES)
def test_upstream_still_needs_the_repair(
    values: torch.Tensor, replace_from: int, replace_to: int, expected: list[float]
) -> None:
    from vllm.platforms.cpu import CpuPlatform
    from vllm.utils import cpu_triton_utils as upstream

    CpuPlatform.import_kernels()
    kernel = upstream._FuncWrapper(upstream._expand_kernel_impl)
    broken = run(kernel, values, replace_from, replace_to)
    assert not torch.equal(broken, torch.tensor(expected, dtype=values.dtype)), (
        "vLLM has mended expand_kernel: remove ascend_vllm_plugin/compat/expand_kernel.py"
    )
