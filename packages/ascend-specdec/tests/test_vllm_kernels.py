"""What stands for vLLM's kernels of verification, and what is wrong with its own on a CPU."""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_specdec.vllm import check_speculation, kernels
from ascend_specdec.vllm.kernels import Kernel

EXPANDED = [
    pytest.param(
        torch.tensor([0.7, 0.0, 1.5]), 0, 1, [0.7, 0.7, 1.0, 1.5, 1.5, 1.5], id="temperature"
    ),
    pytest.param(torch.tensor([5, 0, 9], dtype=torch.int32), 0, 0, [5, 5, 0, 9, 9, 9], id="top-k"),
]
CUMULATIVE = torch.tensor([2, 3, 6], dtype=torch.int32)


def upstream_kernel(name: str) -> Any:
    """vLLM's own kernel for a CPU, whatever has taken its place."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.utils import cpu_triton_utils as upstream

    CpuPlatform.import_kernels()
    return upstream._FuncWrapper(getattr(upstream, f"_{name}_impl"))


def expanded(kernel: Any, values: torch.Tensor, replace_from: int, replace_to: int) -> torch.Tensor:
    output = torch.full((6,), -7, dtype=values.dtype)
    kernel[(3,)](output, values, CUMULATIVE, replace_from, replace_to, MAX_NUM_TOKENS=128)
    return output


@pytest.mark.parametrize(("values", "replace_from", "replace_to", "expected"), EXPANDED)
def test_every_draft_gets_the_value_of_its_request(
    values: torch.Tensor, replace_from: int, replace_to: int, expected: list[float]
) -> None:
    got = expanded(Kernel(kernels.expand), values, replace_from, replace_to)
    assert torch.equal(got, torch.tensor(expected, dtype=values.dtype))


@pytest.mark.engine
@pytest.mark.parametrize(("values", "replace_from", "replace_to", "expected"), EXPANDED)
def test_upstream_still_leaves_sampling_parameters_unwritten(
    values: torch.Tensor, replace_from: int, replace_to: int, expected: list[float]
) -> None:
    broken = expanded(upstream_kernel("expand_kernel"), values, replace_from, replace_to)
    assert not torch.equal(broken, torch.tensor(expected, dtype=values.dtype)), (
        "vLLM has mended expand_kernel: remove it from ascend_specdec/vllm/kernels.py"
    )


def verified_placeholder(kernel: Any, int_dtype: torch.dtype) -> list[int]:
    """A placeholder among the drafts, with the draw that accepts whatever may be accepted."""
    output = torch.full((1, 3), -1, dtype=torch.int32)
    kernel[(1,)](
        output,
        torch.tensor([2], dtype=int_dtype),
        torch.tensor([-1, 1], dtype=int_dtype),
        None,
        torch.full((2, 4), 0.25),
        torch.tensor([[9]], dtype=int_dtype),
        torch.tensor([3, 2], dtype=int_dtype),
        torch.zeros(2, dtype=torch.float64),
        torch.tensor([False]),
        2,
        4,
        None,
        NO_DRAFT_PROBS=True,
        SYNTHETIC_MODE=False,
    )
    return output.flatten().tolist()


def test_a_placeholder_is_rejected() -> None:
    assert verified_placeholder(Kernel(kernels.random), torch.int32) == [3, -1, -1]


@pytest.mark.engine
def test_upstream_still_accepts_a_placeholder() -> None:
    broken = verified_placeholder(upstream_kernel("rejection_random_sample_kernel"), torch.int32)
    assert broken != [3, -1, -1], (
        "vLLM has mended its random kernel: remove it from ascend_specdec/vllm/kernels.py"
    )


def test_noise_of_any_precision_is_taken() -> None:
    output = torch.full((6,), -7, dtype=torch.int32)
    p = torch.full((6, 4), 0.25)
    noise = torch.ones(3, 4, dtype=torch.float64)
    noise[:, 2] = 2
    drafts = torch.zeros(6, dtype=torch.int32)
    kernels.recover(output, CUMULATIVE, drafts, None, p, noise, 4, 8192, NO_DRAFT_PROBS=True)
    assert output.tolist() == [2] * 6


def test_synthetic_acceptance_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="synthetic"):
        kernels.greedy(*[torch.zeros(1)] * 5, None, 1, SYNTHETIC_MODE=True)


def test_acceptance_by_configured_rates_is_refused() -> None:
    given = SimpleNamespace(rejection_sample_method="synthetic", method="mtp")
    config: Any = SimpleNamespace(speculative_config=given, additional_config={})
    with pytest.raises(InvalidInputError, match="synthetic"):
        check_speculation(config)


def test_a_connector_that_needs_cuda_is_refused() -> None:
    given = SimpleNamespace(rejection_sample_method="standard", method="extract_hidden_states")
    config: Any = SimpleNamespace(speculative_config=given, additional_config={})
    config.model_config = SimpleNamespace(is_hybrid=False)
    config.kv_transfer_config = SimpleNamespace(kv_connector="ExampleHiddenStatesConnector")
    with pytest.raises(InvalidInputError, match="ExampleHiddenStatesConnector"):
        check_speculation(config)
    config.kv_transfer_config.kv_connector = "Other"
    check_speculation(config)


def test_ways_of_verification_with_the_law_of_the_target_are_accepted() -> None:
    ways = ("standard", "block")
    given = [SimpleNamespace(rejection_sample_method=one, method="mtp") for one in ways]
    for speculative in (None, *given):
        config: Any = SimpleNamespace(speculative_config=speculative, additional_config={})
        check_speculation(config)


@pytest.mark.engine
@pytest.mark.parametrize("name", list(kernels.REPLACED))
def test_upstream_still_launches_a_kernel_of_that_name(name: str) -> None:
    """In the one file where it is looked up."""
    source = inspect.getsource(importlib.import_module("vllm.v1.sample.rejection_sampler"))
    assert f"{name}[" in source, f"vLLM no longer launches {name}: remove it from REPLACED"
