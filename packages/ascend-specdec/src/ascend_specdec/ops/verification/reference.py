"""Definitions of verification, without waiting for a device: shapes depend on no value."""

from __future__ import annotations

import torch


def expand_to_drafts(
    out: torch.Tensor,
    values: torch.Tensor,
    cumulative: torch.Tensor,
    replace_from: float,
    replace_to: float,
) -> None:
    """See :func:`ascend_specdec.ops.verification.expand_to_drafts`."""
    chosen = values.masked_fill(values == replace_from, replace_to)
    out.copy_(chosen[request_of_draft(cumulative, out.shape[0])])


def verify_greedy(
    out: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    argmax: torch.Tensor,
    bonus: torch.Tensor,
    chosen: torch.Tensor | None,
) -> None:
    """See :func:`ascend_specdec.ops.verification.verify_greedy`."""
    rows = _Rows(cumulative, out.shape[1] - 1, drafts.shape[0])
    equal = rows.spread(drafts == argmax, fill=False)
    rows.write(out, rows.run(equal), argmax, argmax, bonus, chosen)


def verify_random(
    out: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    bonus: torch.Tensor,
    recovered: torch.Tensor,
    uniform: torch.Tensor,
    chosen: torch.Tensor | None,
) -> None:
    """See :func:`ascend_specdec.ops.verification.verify_random`."""
    rows = _Rows(cumulative, out.shape[1] - 1, drafts.shape[0])
    p, q = _of_drafts(drafts, draft_probs, target_probs)
    accepted = (q > 0) & ((p >= q) | (uniform * q < p))
    rows.write(out, rows.run(rows.spread(accepted, fill=False)), drafts, recovered, bonus, chosen)


def write_accepted(
    out: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    counts: torch.Tensor,
    recovered: torch.Tensor,
    bonus: torch.Tensor,
    chosen: torch.Tensor | None,
) -> None:
    """Write the first ``counts [R]`` drafts of each request, and what follows them."""
    rows = _Rows(cumulative, out.shape[1] - 1, drafts.shape[0])
    rows.write(out, counts.long().unsqueeze(1), drafts, recovered, bonus, chosen)


def recovered_tokens(
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    inverse_noise: torch.Tensor,
    scale: torch.Tensor | None,
) -> torch.Tensor:
    """See :func:`ascend_specdec.ops.verification.recovered_tokens`."""
    every = torch.arange(drafts.shape[0], device=drafts.device)
    if scale is None:
        scale = torch.ones_like(every, dtype=torch.float32)
    left = _left(every, scale, drafts, draft_probs, target_probs)
    noise = inverse_noise[request_of_draft(cumulative, drafts.shape[0])]
    race = torch.where(left > 0, left * noise, -1.0)
    p = torch.nan_to_num(target_probs, nan=0.0)
    return torch.where(race.amax(dim=1) > 0, _first_largest(race), _first_largest(p)).int()


def _first_largest(rows: torch.Tensor) -> torch.Tensor:
    """The lowest index of the largest value of each row, which ``argmax`` does not promise."""
    return (rows == rows.amax(dim=1, keepdim=True)).int().argmax(dim=1)


def accepted_in_block(
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    uniform: torch.Tensor,
    most: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`ascend_specdec.ops.verification.accepted_in_block`."""
    rows = _Rows(cumulative, most, drafts.shape[0])
    p, q = _of_drafts(drafts, draft_probs, target_probs)
    ratio = rows.spread(torch.where(q > 0, p / q, 0.0), fill=0.0)
    u = rows.spread(uniform, fill=1.0)
    products = [torch.ones_like(cumulative, dtype=torch.float32)]
    accepted = torch.zeros_like(rows.counts)
    for i in range(most):
        product = (products[-1] * ratio[:, i]).clamp(max=1)
        left = product
        if i + 1 < most:
            mass = _left(rows.index[:, i + 1], product, drafts, draft_probs, target_probs).sum(1)
            divisor = mass + (1 - product)
            share = torch.where(divisor > 0, mass / divisor, 0.0)
            left = torch.where(rows.counts == i + 1, product, share)
        accepted = torch.where(rows.inside[:, i] & (u[:, i] < left), i + 1, accepted)
        products.append(product)
    request = request_of_draft(cumulative, drafts.shape[0])
    place = torch.arange(drafts.shape[0], device=drafts.device)
    column = place - (cumulative.long() - rows.counts)[request]
    return accepted.int(), torch.stack(products, dim=1)[request, column]


def _left(
    rows: torch.Tensor,
    scale: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
) -> torch.Tensor:
    """``max(scale p - q, 0)`` of one draft of each of R requests, ``[R, V]``."""
    left = torch.nan_to_num(target_probs[rows], nan=0.0) * scale.unsqueeze(1)
    chosen = drafts[rows].unsqueeze(1)
    if draft_probs is None:
        tokens = torch.arange(target_probs.shape[1], device=drafts.device)
        return left.masked_fill(tokens == chosen, 0)
    less = (left - torch.nan_to_num(draft_probs[rows], nan=0.0)).clamp(min=0)
    return torch.where(_inside(chosen, target_probs.shape[1]), less, left)


def request_of_draft(cumulative: torch.Tensor, drafts: int) -> torch.Tensor:
    """``[N]`` int64: the request of every draft, found without asking the device for sizes."""
    place = torch.arange(drafts, dtype=cumulative.dtype, device=cumulative.device)
    return torch.searchsorted(cumulative, place, right=True)


def _inside(drafts: torch.Tensor, vocabulary: int) -> torch.Tensor:
    return (drafts >= 0) & (drafts < vocabulary)


def _of_drafts(
    drafts: torch.Tensor, draft_probs: torch.Tensor | None, target_probs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``p(d)`` and ``q(d)`` of each draft, ``[N]``; ``q`` is 0 for one outside the vocabulary."""
    vocabulary = target_probs.shape[1]
    place = drafts.clamp(0, vocabulary - 1).long().unsqueeze(1)
    p = torch.nan_to_num(target_probs.gather(1, place).squeeze(1), nan=0.0)
    q = torch.ones_like(p)
    if draft_probs is not None:
        q = torch.nan_to_num(draft_probs.gather(1, place).squeeze(1), nan=0.0)
    return p, torch.where(_inside(drafts, vocabulary), q, 0.0)


class _Rows:
    """N drafts as ``[R, S]``, one request a row."""

    def __init__(self, cumulative: torch.Tensor, most: int, drafts: int) -> None:
        ends = cumulative.long()
        self.counts = torch.diff(ends, prepend=ends.new_zeros(1))
        column = torch.arange(most, device=ends.device)
        self.inside = column < self.counts.unsqueeze(1)
        self.column = torch.arange(most + 1, device=ends.device)
        index = (ends - self.counts).unsqueeze(1) + column
        self.index = index.clamp(max=max(drafts - 1, 0))
        self.drafts = drafts

    def spread(self, values: torch.Tensor, fill: float) -> torch.Tensor:
        """``values [N]`` as ``[R, S]``."""
        if not self.drafts:
            return values.new_full(self.index.shape, fill)
        return values[self.index].masked_fill(~self.inside, fill)

    def run(self, accepted: torch.Tensor) -> torch.Tensor:
        """Drafts ``[R, 1]`` in front of the first that is not accepted."""
        return accepted.long().cumprod(dim=1).sum(dim=1, keepdim=True)

    def write(
        self,
        out: torch.Tensor,
        run: torch.Tensor,
        tokens: torch.Tensor,
        recovered: torch.Tensor,
        bonus: torch.Tensor,
        chosen: torch.Tensor | None,
    ) -> None:
        """Write ``run [R, 1]`` tokens of each row, and the recovered or the bonus token."""
        pad = torch.nn.functional.pad
        kept = pad(self.spread(tokens, -1), (0, 1)).to(out.dtype)
        replaced = pad(self.spread(recovered, -1), (0, 1)).to(out.dtype)
        count = self.counts.unsqueeze(1)
        after = torch.where(self.column == count, bonus.unsqueeze(1).to(out.dtype), replaced)
        row = torch.where(self.column < run, kept, torch.where(self.column == run, after, out))
        if chosen is not None:
            row = torch.where(chosen.unsqueeze(1), row, out)
        out.copy_(row)
