"""Our verification in the places where vLLM's V1 runner launches Triton kernels of its own.

Upstream symbols (0.27.1): ``rejection_greedy_sample_kernel``, ``rejection_random_sample_kernel``,
``expand_kernel`` and ``sample_recovered_tokens_kernel`` of ``vllm.v1.sample.rejection_sampler``.
They are written for CUDA; their C++ counterparts for CPU tensors leave sampling parameters of
drafts unwritten and can accept the placeholder -1, so ours take their place there as well.

R requests have N drafted tokens, which lie one request behind the other; ``cumulative [R]`` counts
those up to and including each request; S is the largest number of any request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ascend_ops_core.errors import InvalidInputError

from ascend_specdec.ops.verification import (
    expand_to_drafts,
    recovered_tokens,
    verify_greedy,
    verify_random,
)


class Kernel:
    """Called as a Triton kernel is: ``kernel[grid](...)``."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.function


def expand(
    output: torch.Tensor,
    values: torch.Tensor,
    cumulative: torch.Tensor,
    replace_from: float,
    replace_to: float,
    **unused: Any,
) -> None:
    """Write ``values[r]`` to each token of request r.

    Args:
        output: ``[N]``, overwritten.
        values: ``[R]``, of the same dtype.
        cumulative: ``[R]``.
        replace_from: a value that is written as ``replace_to``.
        replace_to: see ``replace_from``.
        unused: constants of the Triton kernel.
    """
    expand_to_drafts(output, values, cumulative, replace_from, replace_to)


def greedy(
    output: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    argmax: torch.Tensor,
    bonus: torch.Tensor,
    is_greedy: torch.Tensor | None,
    most_drafts: int,
    uniform: torch.Tensor | None = None,
    rates: torch.Tensor | None = None,
    SYNTHETIC_MODE: bool = False,
) -> None:
    """Keep drafts up to the first that the target would not have chosen.

    Args:
        output: ``[R, S + 1]``; the target's choice is written for each accepted draft and the
            first rejected one, the bonus token behind a request's last draft if all are accepted.
        cumulative: ``[R]``.
        drafts: ``[N]``.
        argmax: ``[N]``, what the target chooses.
        bonus: ``[R, 1]``.
        is_greedy: ``[R]`` bool, requests that this is for; None for all.
        most_drafts: ``S``, which the width of ``output`` tells.
        uniform: of synthetic acceptance, which is refused.
        rates: the same.
        SYNTHETIC_MODE: the same.

    Raises:
        InvalidInputError: synthetic acceptance is asked for.
    """
    _refuse_synthetic(SYNTHETIC_MODE)
    verify_greedy(output, cumulative, drafts, argmax, bonus, is_greedy)


def random(
    output: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    bonus: torch.Tensor,
    recovered: torch.Tensor,
    uniform: torch.Tensor,
    is_greedy: torch.Tensor | None,
    most_drafts: int,
    vocab_size: int,
    rates: torch.Tensor | None = None,
    NO_DRAFT_PROBS: bool = False,
    SYNTHETIC_MODE: bool = False,
) -> None:
    """Keep drafts up to the first that chance rejects, and replace that one.

    Args:
        output: ``[R, S + 1]``, written as by :func:`greedy`.
        cumulative: ``[R]``.
        drafts: ``[N]``; -1 is always rejected.
        draft_probs: ``[N, V]``; None for drafts that were certain.
        target_probs: ``[N, V]``.
        bonus: ``[R, 1]``.
        recovered: ``[N]``, what stands for a rejected draft.
        uniform: ``[N]`` in [0, 1).
        is_greedy: ``[R]`` bool, requests that this is not for; None for none.
        most_drafts: ``S``, which the width of ``output`` tells.
        vocab_size: ``V``, which the probabilities tell.
        rates: of synthetic acceptance, which is refused.
        NO_DRAFT_PROBS: ``draft_probs`` is None.
        SYNTHETIC_MODE: refused.

    Raises:
        InvalidInputError: synthetic acceptance is asked for.
    """
    _refuse_synthetic(SYNTHETIC_MODE)
    chosen = None if is_greedy is None else ~is_greedy
    verify_random(
        output, cumulative, drafts, draft_probs, target_probs, bonus, recovered, uniform, chosen
    )


def recover(
    output: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    inverse_noise: torch.Tensor,
    vocab_size: int,
    *unused: Any,
    NO_DRAFT_PROBS: bool = False,
    **constants: Any,
) -> None:
    """Draw what stands for each draft if it is rejected.

    Args:
        output: ``[N]``, overwritten.
        cumulative: ``[R]``.
        drafts: ``[N]``; without ``draft_probs`` they are not drawn again.
        draft_probs: ``[N, V]`` or None.
        target_probs: ``[N, V]``.
        inverse_noise: ``[R, V]``, the exponential race of each request.
        vocab_size: ``V``, which the probabilities tell.
        unused: block size of the Triton kernel.
        NO_DRAFT_PROBS: ``draft_probs`` is None.
        constants: constants of the Triton kernel.
    """
    noise = inverse_noise.float()
    output.copy_(recovered_tokens(cumulative, drafts, draft_probs, target_probs, noise))


def _refuse_synthetic(asked: bool) -> None:
    if asked:
        raise InvalidInputError(
            "synthetic acceptance of drafts",
            "accepted tokens would not be those of the model",
            "Leave rejection_sample_method out.",
        )


REPLACED: dict[str, Callable[..., None]] = {
    "expand_kernel": expand,
    "rejection_greedy_sample_kernel": greedy,
    "rejection_random_sample_kernel": random,
    "sample_recovered_tokens_kernel": recover,
}
"""Name of vLLM's kernel in ``vllm.v1.sample.rejection_sampler``, and what runs in its place."""


def replace_cpu_kernels() -> None:
    """Put ours where vLLM's CPU runner looks for its own; may be called repeatedly.

    Raises:
        AttributeError: vLLM has no kernel of that name there any more.
    """
    from vllm.utils import cpu_triton_utils

    for name, function in REPLACED.items():
        getattr(cpu_triton_utils, name)
        setattr(cpu_triton_utils, name, Kernel(function))
