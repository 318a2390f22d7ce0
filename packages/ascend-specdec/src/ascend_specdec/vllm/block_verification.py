"""Block verification in vLLM's V1 runner, which knows only verification one by one.

Upstream symbol (0.27.1): ``vllm.v1.sample.rejection_sampler.rejection_sample``, which
``RejectionSampler.forward`` calls with the processed logits. What is in front of and behind it,
processors, temperature, top-k, top-p and log probabilities, stays vLLM's own.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample import rejection_sampler as upstream
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler

from ascend_specdec.ops.verification import verify_block, verify_greedy

__all__ = ["BlockRejectionSampler", "sample_in_blocks", "use_block_verification"]


def sample_in_blocks(
    draft_token_ids: torch.Tensor,
    num_draft_tokens: list[int],
    max_spec_len: int,
    cu_num_draft_tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    sampling_metadata: SamplingMetadata,
    **unused: Any,
) -> torch.Tensor:
    """Verify all drafts of a request together; those of greedy requests one by one.

    Args:
        draft_token_ids: ``[N]``.
        num_draft_tokens: drafts of each of R requests.
        max_spec_len: ``S``, the most of any request.
        cu_num_draft_tokens: ``[R]``.
        draft_probs: ``[N, V]`` float32; None for drafts that were certain.
        target_logits: ``[N, V]`` float32, processed.
        bonus_token_ids: ``[R, 1]``.
        sampling_metadata: of the R requests. One with a seed draws from its own generator, in the
            order in which vLLM's verification does.
        unused: of synthetic acceptance, which is refused before, and of float64 noise.

    Returns:
        ``[R, S + 1]`` int32, -1 behind what stands.
    """
    requests = len(num_draft_tokens)
    device = target_logits.device
    out = torch.full(
        (requests, max_spec_len + 1),
        upstream.PLACEHOLDER_TOKEN_ID,
        dtype=torch.int32,
        device=device,
    )
    greedy = None
    if not sampling_metadata.all_greedy:
        assert sampling_metadata.temperature is not None
        greedy = sampling_metadata.temperature == upstream.GREEDY_TEMPERATURE
    if not sampling_metadata.all_random:
        best = target_logits.argmax(dim=-1)
        verify_greedy(out, cu_num_draft_tokens, draft_token_ids, best, bonus_token_ids, greedy)
    if greedy is None:
        return out
    generators = sampling_metadata.generators
    uniform = upstream.generate_uniform_probs(
        draft_token_ids.shape[0], num_draft_tokens, generators, device
    )
    noise = torch.empty(requests, target_logits.shape[1], device=device).exponential_()
    for request, generator in generators.items():
        # A generator must not move on in a step without drafts, or the step would decide the rest.
        if num_draft_tokens[request]:
            noise[request].exponential_(generator=generator)
    verify_block(
        out,
        cu_num_draft_tokens,
        draft_token_ids,
        draft_probs,
        target_logits.softmax(dim=-1, dtype=torch.float32),
        bonus_token_ids,
        noise.reciprocal(),
        uniform,
        ~greedy,
    )
    return out


class BlockRejectionSampler(RejectionSampler):
    """vLLM's sampler of drafts, with :func:`sample_in_blocks` in the middle."""

    def forward(self, *args: Any, **kwargs: Any) -> SamplerOutput:
        """See vLLM's class."""
        standard = upstream.rejection_sample
        upstream.rejection_sample = sample_in_blocks
        try:
            return super().forward(*args, **kwargs)
        finally:
            upstream.rejection_sample = standard


def use_block_verification(runner: Any) -> None:
    """Let a V1 model runner verify in blocks, where its config asks for that.

    Args:
        runner: vLLM's, or one derived from it, as its constructor leaves it.
    """
    speculative = runner.speculative_config
    if speculative is None or speculative.rejection_sample_method != "block":
        return
    if not hasattr(runner, "rejection_sampler"):
        return  # a stage of the pipeline that samples nothing
    runner.rejection_sampler = BlockRejectionSampler(runner.sampler, speculative, runner.device)
    drafter = runner.drafter
    # vLLM keeps the draft's probabilities for its own verification only.
    if hasattr(drafter, "_enable_probabilistic_draft_probs"):
        drawn = speculative.draft_sample_method == "probabilistic"
        drafter._enable_probabilistic_draft_probs = drawn
