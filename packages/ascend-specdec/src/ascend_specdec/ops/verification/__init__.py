"""Verification of drafted tokens: which of them stand, and what replaces the first that does not.

R requests have N drafted tokens, which lie one request behind the other; ``cumulative [R]`` counts
those up to and including each request. A request's row of ``out [R, S + 1]`` receives its accepted
drafts, then one token that the target chose: what replaces the first rejected draft, or the bonus
token behind the last one. The rest of the row is left as it is; vLLM fills it with -1.

The target's distribution is ``p``, the draft's ``q``. A draft ``d`` is accepted with probability
``min(1, p(d) / q(d))``, and a rejected one is replaced by a draw from ``max(p - q, 0)``, which
together has the law of ``p`` (Leviathan et al., 2023, "Fast inference from transformers via
speculative decoding", algorithm 1). Drafts without probabilities were certain: ``q(d) = 1``.

Rules for what has no good answer: a draft outside the vocabulary (vLLM's placeholder is -1) is
rejected, and replaced by a draw from all of ``p``; NaN counts as probability 0; where nothing of
positive probability is left, the most probable token of ``p`` stands, the lowest id of several, and
id 0 if all are NaN. So ids are always in range.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import INDICES, require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = [
    "MAX_DRAFTS",
    "accepted_in_block",
    "expand_to_drafts",
    "recovered_tokens",
    "verify_block",
    "verify_greedy",
    "verify_random",
]

MAX_DRAFTS = 128
"""Most drafts of one request in a step (vLLM: ``v1/sample/rejection_sampler.py: MAX_SPEC_LEN``)."""

_FLOAT32 = (torch.float32,)


def expand_to_drafts(
    out: torch.Tensor,
    values: torch.Tensor,
    cumulative: torch.Tensor,
    replace_from: float = 0,
    replace_to: float = 0,
) -> None:
    """Write each request's value to all of its drafts.

    Args:
        out: ``[N]``, overwritten; any dtype.
        values: ``[R]``, of the same dtype.
        cumulative: ``[R]`` int32 or int64; the last one is ``N``.
        replace_from: a value that is written as ``replace_to``.
        replace_to: see ``replace_from``.

    Raises:
        InvalidInputError: shapes or dtypes that do not belong together.
    """
    require_shape("out", out, None)
    require_shape("values", values, None)
    require_dtype("values", values, (out.dtype,))
    _require_cumulative(cumulative, values.shape[0])
    if not out.numel():
        return
    _EXPAND(out, values, cumulative, float(replace_from), float(replace_to))


def verify_greedy(
    out: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    argmax: torch.Tensor,
    bonus: torch.Tensor,
    chosen: torch.Tensor | None = None,
) -> None:
    """Keep drafts up to the first that the target would not have chosen.

    Args:
        out: ``[R, S + 1]`` int32; see the module. ``S`` is at most 128.
        cumulative: ``[R]`` int32 or int64.
        drafts: ``[N]`` int32 or int64.
        argmax: ``[N]`` int32 or int64, what the target chooses in the place of each draft.
        bonus: ``[R]`` or ``[R, 1]`` int32 or int64.
        chosen: ``[R]`` bool, the requests that are verified, whose rows alone are written; None
            for all.

    Raises:
        InvalidInputError: shapes or dtypes that do not belong together.
    """
    bonus = _require_rows(out, cumulative, drafts, bonus, chosen)
    require_shape("argmax", argmax, drafts.shape[0])
    require_dtype("argmax", argmax, INDICES)
    if out.numel():
        _VERIFY_GREEDY(out, cumulative, drafts, argmax, bonus, chosen)


def verify_random(
    out: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    bonus: torch.Tensor,
    recovered: torch.Tensor,
    uniform: torch.Tensor,
    chosen: torch.Tensor | None = None,
) -> None:
    """Keep drafts up to the first that chance rejects.

    A draft is accepted if ``u q(d) < p(d)``, so one of probability 0 never is, and always if
    ``p(d) >= q(d) > 0``.

    Args:
        out: ``[R, S + 1]`` int32; see the module. ``S`` is at most 128.
        cumulative: ``[R]`` int32 or int64.
        drafts: ``[N]`` int32 or int64.
        draft_probs: ``[N, V]`` float32 in rows without gaps; None for drafts that were certain.
        target_probs: ``[N, V]`` float32 in rows without gaps.
        bonus: ``[R]`` or ``[R, 1]`` int32 or int64.
        recovered: ``[N]`` int32 or int64, what replaces each draft if it is the first to be
            rejected; see :func:`recovered_tokens`.
        uniform: ``[N]`` float32 or float64 in [0, 1); the comparison is made in float32.
        chosen: ``[R]`` bool, the requests that are verified, whose rows alone are written; None
            for all.

    Raises:
        InvalidInputError: shapes or dtypes that do not belong together.
    """
    bonus = _require_rows(out, cumulative, drafts, bonus, chosen)
    _require_probabilities(drafts, draft_probs, target_probs)
    require_shape("recovered", recovered, drafts.shape[0])
    require_dtype("recovered", recovered, INDICES)
    uniform = _require_uniform(uniform, drafts)
    if out.numel():
        _VERIFY_RANDOM(
            out, cumulative, drafts, draft_probs, target_probs, bonus, recovered, uniform, chosen
        )


def recovered_tokens(
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    inverse_noise: torch.Tensor,
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draw, for each draft, what replaces it if it is the first to be rejected.

    The draw is the winner of an exponential race: the token for which ``max(s p - q, 0) / e`` is
    largest, the lowest id of several. One row of noise per request is enough, since one draft of
    a request at most is replaced.

    Args:
        cumulative: ``[R]`` int32 or int64.
        drafts: ``[N]`` int32 or int64.
        draft_probs: ``[N, V]`` float32 in rows without gaps; None for drafts that were certain.
        target_probs: ``[N, V]`` float32 in rows without gaps; ``V`` is at least 1.
        inverse_noise: ``[R, V]`` float32, ``1 / e`` of independent exponential ``e``; the noise of
            the draft's own draws must not be used again, or the law is not that of ``p``.
        scale: ``[N]`` float32, ``s`` of block verification; None for 1.

    Returns:
        ``[N]`` int32.

    Raises:
        InvalidInputError: shapes or dtypes that do not belong together.
    """
    _require_cumulative(cumulative, cumulative.shape[0])
    _require_probabilities(drafts, draft_probs, target_probs)
    require_shape("inverse_noise", inverse_noise, cumulative.shape[0], target_probs.shape[1])
    require_dtype("inverse_noise", inverse_noise, _FLOAT32)
    if scale is not None:
        require_shape("scale", scale, drafts.shape[0])
        require_dtype("scale", scale, _FLOAT32)
    if not drafts.numel():
        return drafts.new_empty(0, dtype=torch.int32)
    result: torch.Tensor = _RECOVERED(
        cumulative, drafts, draft_probs, target_probs, inverse_noise, scale
    )
    return result


def accepted_in_block(
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    uniform: torch.Tensor,
    most: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Number of drafts that block verification accepts (Sun et al., 2024, "Block verification
    accelerates speculative decoding", algorithm 2).

    With ``P_0 = 1``, ``P_i = min(P_{i-1} p_i(d_i) / q_i(d_i), 1)`` and
    ``S_i = sum_v max(P_i p_{i+1}(v) - q_{i+1}(v), 0)``, draft ``i`` of ``n`` may be the last one
    with probability ``h_i = S_i / (S_i + 1 - P_i)``, and ``h_n = P_n``; the last that may be is.
    What replaces the next one is drawn from ``max(P p - q, 0)``: pass the second result to
    :func:`recovered_tokens`.

    Args:
        cumulative: ``[R]`` int32 or int64.
        drafts: ``[N]`` int32 or int64.
        draft_probs: ``[N, V]`` float32 in rows without gaps; None for drafts that were certain.
        target_probs: ``[N, V]`` float32 in rows without gaps.
        uniform: ``[N]`` float32 or float64 in [0, 1); the comparison is made in float32.
        most: ``S``, no request has more drafts; at most 128.

    Returns:
        ``[R]`` int32, and ``P_{i-1}`` of each draft ``i``, ``[N]`` float32.

    Raises:
        InvalidInputError: shapes or dtypes that do not belong together.
    """
    _require_cumulative(cumulative, cumulative.shape[0])
    _require_probabilities(drafts, draft_probs, target_probs)
    uniform = _require_uniform(uniform, drafts)
    if not 0 <= most <= MAX_DRAFTS:
        raise InvalidInputError(
            f"most={most}", f"a request has 0 to {MAX_DRAFTS} drafts", "Draft fewer tokens a step."
        )
    if not drafts.numel():
        counts = torch.zeros(cumulative.shape[0], dtype=torch.int32, device=drafts.device)
        return counts, target_probs.new_empty(0)
    counts, scale = _ACCEPTED_IN_BLOCK(cumulative, drafts, draft_probs, target_probs, uniform, most)
    return counts, scale


def verify_block(
    out: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    bonus: torch.Tensor,
    inverse_noise: torch.Tensor,
    uniform: torch.Tensor,
    chosen: torch.Tensor | None = None,
) -> None:
    """Verify all drafts of a request together, which accepts at least as many as one by one.

    Args:
        out: ``[R, S + 1]`` int32; see the module. ``S`` is at most 128.
        cumulative: ``[R]`` int32 or int64.
        drafts: ``[N]`` int32 or int64.
        draft_probs: ``[N, V]`` float32 in rows without gaps; None for drafts that were certain.
        target_probs: ``[N, V]`` float32 in rows without gaps.
        bonus: ``[R]`` or ``[R, 1]`` int32 or int64.
        inverse_noise: ``[R, V]`` float32; see :func:`recovered_tokens`.
        uniform: ``[N]`` float32 or float64 in [0, 1).
        chosen: ``[R]`` bool, the requests that are verified, whose rows alone are written; None
            for all.

    Raises:
        InvalidInputError: shapes or dtypes that do not belong together.
    """
    bonus = _require_rows(out, cumulative, drafts, bonus, chosen)
    counts, scale = accepted_in_block(
        cumulative, drafts, draft_probs, target_probs, uniform, out.shape[1] - 1
    )
    recovered = recovered_tokens(
        cumulative, drafts, draft_probs, target_probs, inverse_noise, scale
    )
    if out.numel():
        _WRITE_ACCEPTED(out, cumulative, drafts, counts, recovered, bonus, chosen)


def _require_cumulative(cumulative: torch.Tensor, requests: int) -> None:
    require_shape("cumulative", cumulative, requests)
    require_dtype("cumulative", cumulative, INDICES)


def _require_rows(
    out: torch.Tensor,
    cumulative: torch.Tensor,
    drafts: torch.Tensor,
    bonus: torch.Tensor,
    chosen: torch.Tensor | None,
) -> torch.Tensor:
    """Check what all ways of verification share, and return the bonus tokens as ``[R]``."""
    require_shape("out", out, None, None)
    require_dtype("out", out, (torch.int32,))
    requests, width = out.shape
    if not 1 <= width <= MAX_DRAFTS + 1:
        raise InvalidInputError(
            f"out of {width} columns",
            f"a row holds the bonus token and at most {MAX_DRAFTS} drafts",
            "Draft fewer tokens a step.",
        )
    if not out.is_contiguous():
        raise InvalidInputError(
            f"out with strides {list(out.stride())}",
            "its rows have no gaps",
            "Pass a whole tensor.",
        )
    _require_cumulative(cumulative, requests)
    require_shape("drafts", drafts, None)
    require_dtype("drafts", drafts, INDICES)
    bonus = bonus.view(-1) if bonus.dim() == 2 and bonus.shape[1] == 1 else bonus
    require_shape("bonus", bonus, requests)
    require_dtype("bonus", bonus, INDICES)
    if chosen is not None:
        require_shape("chosen", chosen, requests)
        require_dtype("chosen", chosen, (torch.bool,))
    return bonus


def _require_probabilities(
    drafts: torch.Tensor, draft_probs: torch.Tensor | None, target_probs: torch.Tensor
) -> None:
    require_shape("drafts", drafts, None)
    require_dtype("drafts", drafts, INDICES)
    require_shape("target_probs", target_probs, drafts.shape[0], None)
    require_dtype("target_probs", target_probs, _FLOAT32)
    _require_whole_rows("target_probs", target_probs)
    if target_probs.shape[1] == 0:
        raise InvalidInputError("a vocabulary of 0", "it has at least 1 token", "Check the shapes.")
    if draft_probs is not None:
        require_shape("draft_probs", draft_probs, *target_probs.shape)
        require_dtype("draft_probs", draft_probs, _FLOAT32)
        _require_whole_rows("draft_probs", draft_probs)


def _require_whole_rows(name: str, rows: torch.Tensor) -> None:
    if not rows.is_contiguous():
        raise InvalidInputError(
            f"{name} with strides {list(rows.stride())}",
            "its rows lie one behind the other without gaps",
            f"Pass {name}.contiguous().",
        )


def _require_uniform(uniform: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
    """Check, and return as float32 below 1, to which the largest float64 would be rounded."""
    require_shape("uniform", uniform, drafts.shape[0])
    require_dtype("uniform", uniform, (torch.float32, torch.float64))
    if uniform.dtype == torch.float64:
        uniform = uniform.float().clamp(max=_BELOW_ONE)
    return uniform


_BELOW_ONE = 1 - 2**-24

_EXPAND = declare(
    __name__,
    "expand_to_drafts(Tensor(a!) out, Tensor values, Tensor cumulative, float replace_from, "
    "float replace_to) -> ()",
    npu=("triton", "torch"),
    fake=lambda out, values, cumulative, replace_from, replace_to: None,
)
_VERIFY_GREEDY = declare(
    __name__,
    "verify_greedy(Tensor(a!) out, Tensor cumulative, Tensor drafts, Tensor argmax, Tensor bonus, "
    "Tensor? chosen) -> ()",
    npu=("triton", "torch"),
    fake=lambda out, cumulative, drafts, argmax, bonus, chosen: None,
)
_VERIFY_RANDOM = declare(
    __name__,
    "verify_random(Tensor(a!) out, Tensor cumulative, Tensor drafts, Tensor? draft_probs, "
    "Tensor target_probs, Tensor bonus, Tensor recovered, Tensor uniform, Tensor? chosen) -> ()",
    npu=("triton", "torch"),
    fake=lambda out, *arguments: None,
)
_RECOVERED = declare(
    __name__,
    "recovered_tokens(Tensor cumulative, Tensor drafts, Tensor? draft_probs, Tensor target_probs, "
    "Tensor inverse_noise, Tensor? scale) -> Tensor",
    npu=("triton", "torch"),
    fake=lambda cumulative, drafts, *arguments: drafts.new_empty(drafts.shape, dtype=torch.int32),
)
_ACCEPTED_IN_BLOCK = declare(
    __name__,
    "accepted_in_block(Tensor cumulative, Tensor drafts, Tensor? draft_probs, "
    "Tensor target_probs, Tensor uniform, int most) -> (Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=lambda cumulative, drafts, draft_probs, target_probs, uniform, most: (
        torch.empty(cumulative.shape, dtype=torch.int32, device=drafts.device),
        target_probs.new_empty(drafts.shape),
    ),
)
_WRITE_ACCEPTED = declare(
    __name__,
    "write_accepted(Tensor(a!) out, Tensor cumulative, Tensor drafts, Tensor counts, "
    "Tensor recovered, Tensor bonus, Tensor? chosen) -> ()",
    npu=("triton", "torch"),
    fake=lambda out, *arguments: None,
)
