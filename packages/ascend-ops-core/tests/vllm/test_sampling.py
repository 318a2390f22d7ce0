"""The sampling operators against vLLM's torch functions."""

from __future__ import annotations

import pytest
import torch
from ascend_ops_core.ops.sampling import (
    apply_penalties,
    token_bin_counts_and_mask,
    top_k_top_p,
)
from ascend_ops_core.testing import assert_close

pytestmark = pytest.mark.engine

VOCABULARY = 1000


@pytest.mark.oracle("ascend_ops_core::token_bin_counts_and_mask", "vLLM, layers/utils.py")
def test_token_bin_counts_equal_vllm() -> None:
    from vllm.model_executor.layers.utils import get_token_bin_counts_and_mask

    tokens = torch.randint(0, VOCABULARY + 1, (5, 300))  # vLLM pads with the vocabulary's size
    wanted_counts, wanted_mask = get_token_bin_counts_and_mask(tokens, VOCABULARY, 5)
    counts, mask = token_bin_counts_and_mask(tokens, VOCABULARY)
    assert torch.equal(counts.long(), wanted_counts)
    assert torch.equal(mask, wanted_mask)


@pytest.mark.oracle("ascend_ops_core::apply_penalties", "vLLM, layers/utils.py")
def test_penalties_equal_vllm() -> None:
    from vllm.model_executor.layers.utils import apply_penalties as of_vllm

    torch.manual_seed(0)
    prompt = torch.randint(0, VOCABULARY + 1, (4, 65))
    output = torch.randint(0, VOCABULARY + 1, (4, 200))
    penalties = torch.rand(4) + 0.5, torch.randn(4), torch.randn(4)
    logits = 4 * torch.randn(4, VOCABULARY)
    repetition, frequency, presence = penalties
    wanted = of_vllm(logits.clone(), prompt, output, presence, frequency, repetition)
    _, mask = token_bin_counts_and_mask(prompt, VOCABULARY)
    counts, _ = token_bin_counts_and_mask(output, VOCABULARY)
    apply_penalties(logits, mask, counts, *penalties)
    assert_close(logits, wanted, scale=4.0)


@pytest.mark.oracle("ascend_ops_core::top_k_top_p", "vLLM, ops/topk_topp_sampler.py")
@pytest.mark.parametrize("with_k", [True, False])
@pytest.mark.parametrize("with_p", [True, False])
def test_top_k_top_p_equals_vllm(with_k: bool, with_p: bool) -> None:
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    torch.manual_seed(1)
    logits = 4 * torch.randn(6, VOCABULARY)
    k = torch.tensor([1, 20, 50, VOCABULARY, 3, 999]) if with_k else None
    p = torch.tensor([0.9, 0.5, 0.95, 0.8, 0.1, 0.99]) if with_p else None
    wanted = apply_top_k_top_p_pytorch(logits.clone(), k, p)
    assert torch.equal(top_k_top_p(logits, k, p), wanted)
