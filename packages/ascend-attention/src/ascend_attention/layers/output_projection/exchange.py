"""Variants that exchange rows inside the layer, through buffers of fixed address.

A captured graph holds the addresses that its collectives send from and receive at, so both lie in
static buffers, one pair for all layers of a model, as large as the largest graph. A step beyond
them runs without a graph, and takes tensors of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from ascend_ops_core.communication import Group, all_to_all
from ascend_ops_core.ops.rotary import apply_rotary
from ascend_ops_core.static_buffers import StaticBuffers

from ascend_attention.layers.output_projection.plain import OutputProjection
from ascend_attention.layers.output_projection.variants import ProjectionPart

SEND = "o_proj_send"
RECEIVED = "o_proj_received"


class _Exchanging(OutputProjection):
    """A projection with a group of ranks, and the buffers between them.

    Args:
        part: what of the weights this rank holds.
        rank: low rank of a group, N.
        hidden: hidden size, H.
        dtype: of the weights.
        group: the ranks that exchange rows.
        buffers: where the static buffers of the model are.
        capacity: tokens of the largest graph; 0 for no graphs.
        device: of the buffers.
    """

    def __init__(
        self,
        part: ProjectionPart,
        rank: int,
        hidden: int,
        dtype: torch.dtype,
        group: Group,
        buffers: StaticBuffers,
        capacity: int,
        device: torch.device | str,
    ) -> None:
        super().__init__(part, rank, hidden, dtype)
        self.group = group
        self.static_buffers = buffers
        self.capacity = capacity
        for name in (SEND, RECEIVED) if capacity else ():
            if name not in buffers:
                shape = (capacity, group.world_size, *self._row())
                buffers.add(name, shape, dtype, device, every_step=False)

    def _row(self) -> tuple[int, ...]:
        """Shape of what one token sends to one rank."""
        raise NotImplementedError

    def _parts(self, name: str, rows: int, like: torch.Tensor) -> torch.Tensor:
        """``[P, rows, ...]`` to send from or receive at."""
        if rows <= self.capacity:
            return self.static_buffers.parts(name, rows)
        return like.new_empty((self.group.world_size, rows, *self._row()))

    def _exchange(self, x: torch.Tensor, rows: int) -> torch.Tensor:
        """What every rank has for this one, ``[P, rows, ...]``.

        Args:
            x: ``[T, P, ...]``, what this rank's tokens have for each rank.
            rows: tokens that every rank sends, at least T; rows behind T travel as zeros, so that
                no rank multiplies what its neighbour's memory held.
        """
        send = self._parts(SEND, rows, x)
        send[:, : x.shape[0]].copy_(x.transpose(0, 1))
        send[:, x.shape[0] :].zero_()
        return all_to_all(send, self.group, self._parts(RECEIVED, rows, x))


class ExchangedOutputProjection(_Exchanging):
    """``otp``: ranks with their own tokens share the groups of the output projection.

    Each rank sends every other the groups that this one holds, for its own tokens; multiplies its
    groups for the tokens of all; and gets back the sum over the ranks for its own.

    Args:
        exchanging: arguments of every exchanging projection.
        rows_of: tokens that every rank of the group passes in this step, from this rank's number;
            the same on all of them, and at least that.
    """

    def __init__(
        self,
        part: ProjectionPart,
        rank: int,
        hidden: int,
        dtype: torch.dtype,
        group: Group,
        buffers: StaticBuffers,
        capacity: int,
        device: torch.device | str,
        rows_of: Callable[[int], int] = lambda tokens: tokens,
    ) -> None:
        super().__init__(part, rank, hidden, dtype, group, buffers, capacity, device)
        self.rows_of = rows_of

    def forward(self, attended: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """See :meth:`OutputProjection.forward`; all ranks of the group call it together."""
        tokens, ranks = attended.shape[0], self.group.world_size
        rows = self.rows_of(tokens)
        if rows == 0:
            return attended.new_empty((0, self.wo_b.shape[0]))
        plain = apply_rotary(attended, cos, sin, at_end=True, inverse=True)
        own = plain.reshape(tokens, ranks, *self._row())
        latent = self.to_latent(self._exchange(own, rows).flatten(0, 1))
        terms = self.to_hidden(latent.flatten(1))
        return self.group.reduce_scatter(terms, 0)[:tokens]

    def _row(self) -> tuple[int, ...]:
        return self.part.num_groups, self.part.num_channels


class LatentParallelOutputProjection(_Exchanging):
    """``olora_tp``: several tensor-parallel ranks share the heads of one group.

    Each rank multiplies the channels of its heads, which gives one term of the group's low rank;
    the ranks exchange those terms, so that each adds up its own part of the low rank and multiplies
    it by its columns of the second weight.
    """

    def forward(self, attended: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """See :meth:`OutputProjection.forward`; the ranks of a group have the same tokens."""
        tokens = attended.shape[0]
        if tokens == 0:
            return attended.new_empty((0, self.wo_b.shape[0]))
        plain = apply_rotary(attended, cos, sin, at_end=True, inverse=True)
        term = self.to_latent(plain.reshape(tokens, 1, -1))
        terms = self._exchange(term.reshape(tokens, self.group.world_size, *self._row()), tokens)
        latent = terms.sum(0, dtype=torch.float32).to(attended.dtype)
        return self.to_hidden(latent)

    def _row(self) -> tuple[int, ...]:
        return (self.wo_b.shape[1],)
