"""vLLM's kernels that verify drafts, in torch on any device, without waiting for the device.

Upstream symbols (0.27.1): ``rejection_greedy_sample_kernel``, ``rejection_random_sample_kernel``,
``expand_kernel`` and ``sample_recovered_tokens_kernel`` of ``vllm.v1.sample.rejection_sampler``.
They exist for Triton on CUDA and as C++ for CPU tensors.

R requests have N drafted tokens, which lie one request behind the other; ``cumulative [R]`` counts
those up to and including each request; S is the largest number of any request.
"""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.errors import InvalidInputError


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
    if not output.numel():
        return
    chosen = values.masked_fill(values == replace_from, replace_to)
    output.copy_(chosen[_request_of_token(cumulative, output.shape[0])])


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
        most_drafts: ``S``.
        uniform: of synthetic acceptance, which is refused.
        rates: the same.
        SYNTHETIC_MODE: the same.

    Raises:
        InvalidInputError: synthetic acceptance is asked for.
    """
    _refuse_synthetic(SYNTHETIC_MODE)
    rows = _Rows(cumulative, most_drafts, drafts.shape[0])
    accepted = rows.spread(drafts == argmax.to(drafts.dtype), fill=False)
    _write(output, rows, accepted, rows.spread(argmax, fill=-1), bonus, is_greedy)


def random(
    output: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    bonus: torch.Tensor,
    recovered: torch.Tensor,
    uniform: torch.Tensor,
    is_greedy: torch.Tensor,
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
        most_drafts: ``S``.
        vocab_size: ``V``.
        rates: of synthetic acceptance, which is refused.
        NO_DRAFT_PROBS: ``draft_probs`` is None.
        SYNTHETIC_MODE: refused.

    Raises:
        InvalidInputError: synthetic acceptance is asked for.
    """
    _refuse_synthetic(SYNTHETIC_MODE)
    rows = _Rows(cumulative, most_drafts, drafts.shape[0])
    place = drafts.clamp(min=0).long().unsqueeze(1)
    target = target_probs.gather(1, place).squeeze(1)
    draft = torch.ones_like(target)
    if draft_probs is not None:
        draft = draft_probs.gather(1, place).squeeze(1)
    accepted = (drafts >= 0) & (draft > 0) & (target / draft >= uniform)
    written = torch.where(accepted, drafts, recovered)
    chosen = None if is_greedy is None else ~is_greedy
    _write(output, rows, rows.spread(accepted, fill=False), rows.spread(written, -1), bonus, chosen)


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
        vocab_size: ``V``.
        unused: block size of the Triton kernel.
        NO_DRAFT_PROBS: ``draft_probs`` is None.
        constants: constants of the Triton kernel.
    """
    if not output.numel():
        return
    if draft_probs is None:
        tokens = torch.arange(vocab_size, device=drafts.device)
        left = target_probs.masked_fill(tokens == drafts.unsqueeze(1), 0)
    else:
        left = (target_probs - draft_probs).clamp(min=0)
    race = left * inverse_noise[_request_of_token(cumulative, output.shape[0])]
    output.copy_(race.argmax(dim=1))


class _Rows:
    """The tokens of N drafts as ``[R, S]``, one request a row."""

    def __init__(self, cumulative: torch.Tensor, most: int, tokens: int) -> None:
        ends = cumulative.long()
        self.counts = torch.diff(ends, prepend=ends.new_zeros(1))
        column = torch.arange(most, device=ends.device)
        self.inside = column < self.counts.unsqueeze(1)
        self.column = torch.arange(most + 1, device=ends.device)
        index = (ends - self.counts).unsqueeze(1) + column
        self.index = index.clamp(max=max(tokens - 1, 0))
        self.tokens = tokens

    def spread(self, values: torch.Tensor, fill: Any) -> torch.Tensor:
        """``values [N]`` as ``[R, S]``."""
        if not self.tokens:
            return values.new_full(self.index.shape, fill)
        return values[self.index].masked_fill(~self.inside, fill)


def _write(
    output: torch.Tensor,
    rows: _Rows,
    accepted: torch.Tensor,
    tokens: torch.Tensor,
    bonus: torch.Tensor,
    chosen: torch.Tensor | None,
) -> None:
    """Write accepted tokens, the first rejected one, or the bonus token."""
    # Accepted drafts in front of each place; a place is reached if all in front of it are.
    run = accepted.long().cumprod(dim=1).sum(dim=1, keepdim=True)
    count = rows.counts.unsqueeze(1)
    padded = torch.nn.functional.pad(tokens.to(output.dtype), (0, 1), value=-1)
    is_bonus = (rows.column == count) & (run == count)
    is_token = (rows.column <= run) & (rows.column < count)
    if chosen is not None:
        is_bonus &= chosen.unsqueeze(1)
        is_token &= chosen.unsqueeze(1)
    output.copy_(torch.where(is_token, padded, output))
    output.copy_(torch.where(is_bonus, bonus.view(-1, 1).to(output.dtype), output))


def _request_of_token(cumulative: torch.Tensor, tokens: int) -> torch.Tensor:
    """``[N]`` int64: the request of every token, found without asking the device for sizes."""
    token = torch.arange(tokens, device=cumulative.device)
    return (token.unsqueeze(1) >= cumulative).sum(dim=1)


def _refuse_synthetic(asked: bool) -> None:
    if asked:
        raise InvalidInputError(
            "synthetic acceptance of drafts", "it is not computed on an NPU", "Leave it out."
        )
