"""How the ranks share their tokens before routing, and get their outputs back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from ascend_ops_core.communication import all_gather_and_unpad, pad_and_reduce, pad_to_rows
from ascend_ops_core.errors import InvalidInputError

from ascend_fused_moe.groups import ParallelGroups
from ascend_fused_moe.pipeline import MoEPrepareOutput, MoERouterInput

__all__ = [
    "PrepareAndFinalize",
    "PrepareAndFinalizeWithAll2All",
    "PrepareAndFinalizeWithAllGather",
    "PrepareAndFinalizeWithMC2",
    "tokens_of_parts",
]


def tokens_of_parts(
    rows: int, groups: ParallelGroups, sequence_parallel: bool, device: torch.device
) -> tuple[int, ...]:
    """Tokens of each data-parallel part, asked of the ranks.

    Costs one or two small collectives and a wait of the host, which a caller saves who knows the
    numbers, as a scheduler does.

    Args:
        rows: tokens that this rank has.
        groups: the layer's ranks.
        sequence_parallel: the ranks of a part share its tokens.
        device: on which the groups exchange.
    """
    if groups.ranks == 1 or (groups.dp.world_size == 1 and not sequence_parallel):
        return (rows,)
    count = torch.tensor([rows], device=device)
    if sequence_parallel:
        count = groups.tp.all_gather(count, 0).sum(0, keepdim=True)
    return tuple(groups.dp.all_gather(count, 0).tolist())


class PrepareAndFinalize(ABC):
    """Both ends of a layer's exchange of tokens.

    Args:
        groups: the layer's ranks.
        sequence_parallel: the ranks of a data-parallel part share its tokens, rank ``t`` having
            rows ``[t * c, (t + 1) * c)`` with ``c = ceil(T / tp)``; else all have all of them.
    """

    def __init__(self, groups: ParallelGroups, *, sequence_parallel: bool = False) -> None:
        self.groups = groups
        self.sequence_parallel = sequence_parallel

    @property
    @abstractmethod
    def output_is_reduced(self) -> bool:
        """Whether what :meth:`finalize` returns is whole, or still to be summed over ``tp``."""

    def prepare(
        self, given: MoERouterInput, tokens: Sequence[int] | None = None
    ) -> MoEPrepareOutput:
        """Share the tokens; every rank makes this call, also one without tokens.

        Args:
            given: this rank's tokens.
            tokens: tokens of each data-parallel part; None asks the ranks.

        Raises:
            InvalidInputError: ``tokens`` has another length, or another number for this rank.
        """
        if tokens is None:
            device = given.hidden_states.device
            known = tokens_of_parts(given.tokens, self.groups, self.sequence_parallel, device)
        else:
            known = tuple(tokens)
            self._check(given.tokens, known)
        rows = self._prepared(given, known)
        return MoEPrepareOutput(rows, given.hidden_states.shape, known)

    @abstractmethod
    def finalize(self, routed: torch.Tensor, prepared: MoEPrepareOutput) -> torch.Tensor:
        """Give each rank the outputs of its own tokens.

        Args:
            routed: ``[N, H]``, for the rows that were prepared.
            prepared: from the :meth:`prepare` of these rows.

        Returns:
            ``[T, H]``, as many rows as the layer was given.
        """

    @abstractmethod
    def _prepared(self, given: MoERouterInput, tokens: tuple[int, ...]) -> MoERouterInput:
        """The rows that this rank routes."""

    def _check(self, rows: int, tokens: tuple[int, ...]) -> None:
        parts, here = self.groups.dp.world_size, self.groups.dp.rank_in_group
        if len(tokens) != parts:
            raise InvalidInputError(
                f"tokens of {len(tokens)} parts",
                f"there are {parts} data-parallel parts",
                "Give the tokens of each part.",
            )
        limit, place = tokens[here], self.groups.tp.rank_in_group
        if self.sequence_parallel:
            share = -(-limit // self.groups.tp.world_size)
            limit = max(0, min(share, limit - place * share))
        if rows != limit:
            raise InvalidInputError(
                f"{rows} rows on rank {place} of part {here}",
                f"tokens={list(tokens)} leaves it {limit}",
                "Pass the tokens of this step, padding included.",
            )


class PrepareAndFinalizeWithAllGather(PrepareAndFinalize):
    """Every rank gets all tokens; the ranks' parts of the outputs are summed by reduce-scatter.

    The tokens of the data-parallel parts are gathered, and the shares of sequence parallelism with
    them. Without the latter the outputs stay to be summed over ``tp``, once for all that a layer
    adds up.
    """

    @property
    def output_is_reduced(self) -> bool:
        """With sequence parallelism, or without ranks to sum over."""
        return self.sequence_parallel or self.groups.tp.world_size == 1

    def _prepared(self, given: MoERouterInput, tokens: tuple[int, ...]) -> MoERouterInput:
        return _each(given, lambda x: self._gathered(x, tokens))

    def finalize(self, routed: torch.Tensor, prepared: MoEPrepareOutput) -> torch.Tensor:
        """See :meth:`PrepareAndFinalize.finalize`."""
        tokens, groups = prepared.tokens, self.groups
        if self.sequence_parallel and groups.expert_parallel:
            own = pad_and_reduce(routed, tokens, groups.tp.world_size, groups.ep)
        else:
            own = routed
            if groups.dp.world_size > 1:
                own = pad_and_reduce(own, tokens, 1, groups.dp)
            if self.sequence_parallel and groups.tp.world_size > 1:
                mine = tokens[groups.dp.rank_in_group]
                own = pad_and_reduce(own, [mine], groups.tp.world_size, groups.tp)
        return own[: prepared.shape[0]]

    def _gathered(self, x: torch.Tensor, tokens: tuple[int, ...]) -> torch.Tensor:
        groups = self.groups
        if self.sequence_parallel and groups.expert_parallel:
            return all_gather_and_unpad(x, tokens, groups.tp.world_size, groups.ep)
        if self.sequence_parallel and groups.tp.world_size > 1:
            mine = tokens[groups.dp.rank_in_group]
            x = all_gather_and_unpad(x, [mine], groups.tp.world_size, groups.tp)
        if groups.dp.world_size > 1:
            x = all_gather_and_unpad(x, tokens, 1, groups.dp)
        return x


class PrepareAndFinalizeWithAll2All(PrepareAndFinalize):
    """Each rank routes its share of its part's tokens, and the dispatcher exchanges rows.

    Where all ranks of a part have its tokens, each takes a share of them, and the shares of the
    outputs are gathered. The outputs are whole.
    """

    @property
    def output_is_reduced(self) -> bool:
        """Always: a row's results come back to the rank that sent it."""
        return True

    def _prepared(self, given: MoERouterInput, tokens: tuple[int, ...]) -> MoERouterInput:
        if self.sequence_parallel or self.groups.tp.world_size == 1:
            return given
        share = -(-given.tokens // self.groups.tp.world_size)
        return _padded(self._share(given, share), share)

    def finalize(self, routed: torch.Tensor, prepared: MoEPrepareOutput) -> torch.Tensor:
        """See :meth:`PrepareAndFinalize.finalize`."""
        if not self.sequence_parallel and self.groups.tp.world_size > 1 and prepared.shape[0]:
            routed = self.groups.tp.all_gather(routed, 0)
        return routed[: prepared.shape[0]]

    def _share(self, given: MoERouterInput, share: int) -> MoERouterInput:
        first = self.groups.tp.rank_in_group * share
        return _each(given, lambda x: x[first : first + share])


class PrepareAndFinalizeWithMC2(PrepareAndFinalizeWithAll2All):
    """As all-to-all, with the same number of rows on every rank: MC2 wants it, and at least one.

    The rows that are added are not active, so they visit no expert.
    """

    def _prepared(self, given: MoERouterInput, tokens: tuple[int, ...]) -> MoERouterInput:
        parts = self.groups.tp.world_size
        largest = max(1, max(-(-count // parts) for count in tokens))
        if not self.sequence_parallel and parts > 1:
            given = self._share(given, -(-given.tokens // parts))
        return _padded(given, largest)

    def finalize(self, routed: torch.Tensor, prepared: MoEPrepareOutput) -> torch.Tensor:
        """See :meth:`PrepareAndFinalize.finalize`."""
        if not self.sequence_parallel:
            routed = routed[: -(-prepared.shape[0] // self.groups.tp.world_size)]
        return super().finalize(routed, prepared)


def _each(given: MoERouterInput, change: Callable[[torch.Tensor], torch.Tensor]) -> MoERouterInput:
    """The same input with ``change`` made to each of its tensors."""
    active = given.active
    return MoERouterInput(
        change(given.hidden_states),
        change(given.router_logits),
        None if given.token_ids is None else change(given.token_ids),
        # Not every back end exchanges bool.
        None if active is None else change(active.to(torch.uint8)).bool(),
        None if given.adapters is None else change(given.adapters),
    )


def _padded(given: MoERouterInput, rows: int) -> MoERouterInput:
    """The same input with rows that are not active up to ``rows``; its mask is always there."""
    active = given.active
    if active is None:
        active = given.hidden_states.new_ones(given.tokens, dtype=torch.bool)
    return _each(replace(given, active=active), lambda x: pad_to_rows(x, rows))
