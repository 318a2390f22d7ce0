"""Exchanges of rows between ranks, written against the small interface that vLLM's groups have.

``ascend_ops_core.testing.simulated_group`` runs the same code in threads, for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ascend_ops_core.errors import InvalidInputError


class Group(Protocol):
    """What is used of vLLM's ``GroupCoordinator``; every call is made by all ranks."""

    @property
    def rank_in_group(self) -> int:
        """This rank's place."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks."""

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The ranks' tensors side by side along ``dim``."""

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """This rank's part along ``dim`` of the sum over the ranks."""


def all_to_all(
    parts: torch.Tensor, group: Any, received: torch.Tensor | None = None
) -> torch.Tensor:
    """Part ``j`` goes to rank ``j``.

    Args:
        parts: ``[P, ...]``, the same shape on every rank.
        group: a group; vLLM's groups have no such call, so theirs goes to the platform's
            communicator, if that has ``all_to_all_into``, or to ``device_group``.
        received: where to put the result, contiguous and not ``parts``; by default a new tensor.

    Returns:
        ``[P, ...]``: what each rank had for this one.
    """
    if group.world_size == 1:
        return parts if received is None else received.copy_(parts)
    if hasattr(group, "all_to_all_parts"):
        exchanged: torch.Tensor = group.all_to_all_parts(parts)
        return exchanged if received is None else received.copy_(exchanged)
    parts = parts.contiguous()
    if received is None:
        received = torch.empty_like(parts)
    exchange = getattr(getattr(group, "device_communicator", None), "all_to_all_into", None)
    if exchange is not None:
        exchange(received, parts)
    else:
        torch.distributed.all_to_all_single(received, parts, group=group.device_group)
    return received


def features_to_rows(x: torch.Tensor, group: Group) -> torch.Tensor:
    """All tokens' share of the features, from all features of this rank's tokens.

    Args:
        x: ``[T, F, ...]``, ``T`` the same on every rank, ``F`` a multiple of their number ``P``.
        group: the ranks.

    Returns:
        ``[P * T, F / P, ...]``, the tokens in the order of the ranks.

    Raises:
        InvalidInputError: ``F`` is not a multiple of ``P``.
    """
    ranks = group.world_size
    if x.shape[1] % ranks:
        raise InvalidInputError(
            f"{x.shape[1]} features on {ranks} ranks",
            "every rank takes the same number of features",
            "Choose a group whose size divides them.",
        )
    parts = x.unflatten(1, (ranks, -1)).transpose(0, 1)
    return all_to_all(parts, group).flatten(0, 1)


def lmhead_all_to_all(logits: torch.Tensor, group: Group) -> torch.Tensor:
    """Whole rows of logits from parts of the vocabulary.

    Args:
        logits: ``[N, V / P]``, this rank's part of the vocabulary for the tokens of all ranks,
            ``N / P`` of each, in the order of the ranks.
        group: the ``P`` ranks of the head.

    Returns:
        ``[N / P, V]``: this rank's tokens.

    Raises:
        InvalidInputError: ``N`` is not a multiple of ``P``.
    """
    ranks = group.world_size
    if logits.shape[0] % ranks:
        raise InvalidInputError(
            f"{logits.shape[0]} rows of logits on {ranks} ranks",
            "every rank has the same number of tokens",
            "Pad the tokens of each rank to the largest number.",
        )
    parts = (
        logits.unflatten(0, (ranks, -1))
        if logits.shape[0]
        else logits.new_empty(ranks, 0, logits.shape[1])
    )
    return all_to_all(parts, group).transpose(0, 1).flatten(1, 2)


def ep_local_sizes(tokens: Sequence[int], parts: int) -> list[int]:
    """Rows that a rank of each data-parallel part holds when its tokens are shared out.

    Args:
        tokens: tokens of each data-parallel part.
        parts: ranks that share the tokens of one part.
    """
    return [-(-count // parts) for count in tokens]


def pad_to_rows(x: torch.Tensor, rows: int) -> torch.Tensor:
    """``x [n, ...]`` with zero rows up to ``rows``; a collective wants equal shapes.

    Raises:
        InvalidInputError: ``x`` has more rows.
    """
    missing = rows - x.shape[0]
    if missing < 0:
        raise InvalidInputError(
            f"{x.shape[0]} rows", f"the collective takes {rows} a rank", "Check the token counts."
        )
    return x if missing == 0 else torch.cat([x, x.new_zeros(missing, *x.shape[1:])])


def all_gather_and_unpad(
    x: torch.Tensor, tokens: Sequence[int], parts: int, group: Group
) -> torch.Tensor:
    """The tokens of all data-parallel parts, from the share of each rank.

    Rank ``d * parts + t`` holds rows ``[t * c, (t + 1) * c)`` of part ``d``, where ``c`` is the
    part's :func:`ep_local_sizes`.

    Args:
        x: ``[n, ...]``, this rank's share; ``n`` is ``c``, or less where the part's tokens end.
        tokens: tokens of each part.
        parts: ranks that share one part.
        group: the ``len(tokens) * parts`` ranks.

    Returns:
        ``[sum(tokens), ...]`` in the order of the parts, without padding.

    Raises:
        InvalidInputError: another number of ranks, or more rows than a share has.
    """
    sizes = _checked_sizes(tokens, parts, group)
    rows = max(sizes, default=0)
    gathered = group.all_gather(pad_to_rows(x, rows), 0) if rows else x
    blocks = gathered.view(len(sizes), parts, rows, *x.shape[1:])
    whole = [
        blocks[d, :, :size].flatten(0, 1)[:count]
        for d, (size, count) in enumerate(zip(sizes, tokens, strict=True))
    ]
    return torch.cat(whole)


def pad_and_reduce(
    x: torch.Tensor, tokens: Sequence[int], parts: int, group: Group
) -> torch.Tensor:
    """This rank's share of the sum over the ranks; the inverse of :func:`all_gather_and_unpad`.

    Args:
        x: ``[sum(tokens), ...]``, this rank's terms for the tokens of all parts.
        tokens: tokens of each part.
        parts: ranks that share one part.
        group: the ``len(tokens) * parts`` ranks.

    Returns:
        ``[c, ...]``, ``c`` being this part's :func:`ep_local_sizes`; rows behind its tokens are 0.

    Raises:
        InvalidInputError: another number of ranks or of rows.
    """
    sizes = _checked_sizes(tokens, parts, group)
    if x.shape[0] != sum(tokens):
        raise InvalidInputError(
            f"{x.shape[0]} rows", f"the parts have {sum(tokens)} tokens", "Check the token counts."
        )
    rows = max(sizes, default=0)
    blocks = x.new_zeros(len(sizes), parts, rows, *x.shape[1:])
    first = 0
    for d, (size, count) in enumerate(zip(sizes, tokens, strict=True)):
        part = pad_to_rows(x[first : first + count], size * parts)
        blocks[d, :, :size] = part.view(parts, size, *x.shape[1:])
        first += count
    flat = blocks.flatten(0, 2)
    share = group.reduce_scatter(flat, 0) if rows else flat
    return share[: sizes[group.rank_in_group // parts]]


def _checked_sizes(tokens: Sequence[int], parts: int, group: Group) -> list[int]:
    if len(tokens) * parts != group.world_size:
        raise InvalidInputError(
            f"{len(tokens)} parts of {parts} ranks",
            f"the group has {group.world_size} ranks",
            "Pass the expert-parallel group.",
        )
    return ep_local_sizes(tokens, parts)
