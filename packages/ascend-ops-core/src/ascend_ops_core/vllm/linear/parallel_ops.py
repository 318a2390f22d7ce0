"""How a linear layer computes and communicates, as an object that the layer asks.

Every form gives what the whole weight would give, on one rank, for the tokens that this rank gets
back; the tests show it for two processes and for simulated groups of other sizes.

====================  =====================  ===========================  ========================
form                  weight of this rank    before the product           after the product
====================  =====================  ===========================  ========================
column                columns                                             gathers columns if asked
row                   rows                   takes its features if asked  adds up
replicated            all
MLP column            columns                gathers the ranks' tokens
MLP row               rows                                                adds up, own tokens
o_proj row            rows                   features to tokens           adds up, own tokens
DSV4 o_proj column    groups                 groups to tokens
DSV4 o_proj row       rows                                                adds up, own tokens
sharded CP, shared    all
====================  =====================  ===========================  ========================
"""

from __future__ import annotations

from typing import Any

import torch

from ascend_ops_core.communication import Group, features_to_rows
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.linear import grouped_linear

Output = torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]


class CustomLinearOp:
    """What a linear layer does with its input.

    Args:
        layer: the layer; its weights are read at every call.
        group: the ranks that share the layer; None for vLLM's tensor-parallel group.
    """

    local = False
    """Whether every rank has the whole weight, so that nothing is communicated."""

    def __init__(self, layer: Any, group: Group | None = None) -> None:
        self.layer = layer
        self._group = group

    @property
    def comm_group(self) -> Group:
        """The ranks that share the layer."""
        if self._group is None:
            from vllm.distributed.parallel_state import get_tp_group

            return get_tp_group()
        return self._group

    @property
    def tp_size(self) -> int:
        """Parts of the weight."""
        return 1 if self.local else self.comm_group.world_size

    @property
    def tp_rank(self) -> int:
        """This rank's part."""
        return 0 if self.local else self.comm_group.rank_in_group

    @property
    def bias(self) -> torch.Tensor | None:
        """The bias that this rank adds, if any."""
        bias: torch.Tensor | None = None if self.layer.skip_bias_add else self.layer.bias
        return bias

    def apply(self, x: torch.Tensor) -> Output:
        """Compute the layer; see :meth:`with_bias` for what is returned."""
        return self.with_bias(self.apply_impl(x))

    def apply_impl(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the output."""
        return self.finish(self.product(self.prepare(x)))

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        """Bring the input of this rank's product here."""
        return x

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by this rank's weight."""
        y: torch.Tensor = self.layer.quant_method.apply(self.layer, x, self.bias)
        return y

    def finish(self, y: torch.Tensor) -> torch.Tensor:
        """Make the output out of the ranks' products."""
        return y

    def with_bias(self, output: torch.Tensor) -> Output:
        """The output, and if the layer returns it, the bias that was skipped."""
        if not self.layer.return_bias:
            return output
        return output, self.layer.bias if self.layer.skip_bias_add else None


class CustomReplicatedOp(CustomLinearOp):
    """The whole weight on every rank."""

    local = True


class CustomColumnParallelOp(CustomLinearOp):
    """``[T, K]`` to ``[T, N / P]``, or to ``[T, N]`` if the layer gathers its output."""

    def finish(self, y: torch.Tensor) -> torch.Tensor:
        """Gather the columns if the layer says so."""
        gathers = self.layer.gather_output and self.tp_size > 1
        return self.comm_group.all_gather(y, -1) if gathers else y


class CustomRowParallelOp(CustomLinearOp):
    """``[T, K / P]``, or ``[T, K]`` if the layer splits its input, to ``[T, N]``."""

    @property
    def bias(self) -> torch.Tensor | None:
        """The first rank brings the bias into the sum."""
        return super().bias if self.tp_rank == 0 else None

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        """Take this rank's features."""
        if self.layer.input_is_parallel or self.tp_size == 1:
            return x
        if x.shape[-1] % self.tp_size:
            raise InvalidInputError(
                f"{x.shape[-1]} features on {self.tp_size} ranks",
                "every rank takes the same number of features",
                "Choose a group whose size divides them.",
            )
        return x.chunk(self.tp_size, dim=-1)[self.tp_rank].contiguous()

    def finish(self, y: torch.Tensor) -> torch.Tensor:
        """Add the ranks' terms, unless the layer leaves that to its caller."""
        adds = self.layer.reduce_results and self.tp_size > 1
        return self.comm_group.all_reduce(y) if adds else y


class MLPColumnParallelOp(CustomColumnParallelOp):
    """First half of a dense MLP that ranks with different tokens share.

    ``[T, K]`` of this rank's tokens to ``[P * T, N / P]`` of all; ``T`` is the same on all ranks.
    """

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        """Gather the ranks' tokens."""
        return self.comm_group.all_gather(x, 0) if self.tp_size > 1 else x

    def finish(self, y: torch.Tensor) -> torch.Tensor:
        """The second half takes the columns as they are."""
        return y


class MLPRowParallelOp(CustomRowParallelOp):
    """Second half of a dense MLP that ranks with different tokens share.

    ``[P * T, K / P]`` of all tokens to ``[T, N]`` of this rank's.
    """

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        """The first half left this rank's features of all tokens."""
        return x

    def finish(self, y: torch.Tensor) -> torch.Tensor:
        """Add the ranks' terms and keep the own tokens."""
        return self.comm_group.reduce_scatter(y, 0) if self.tp_size > 1 else y


class OProjRowParallelOp(MLPRowParallelOp):
    """Output projection of attention that ranks with different tokens share.

    ``[T, K]``, all heads of this rank's tokens, to ``[T, N]``; ``T`` is the same on all ranks.
    """

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        """Exchange the own tokens' features for the own features of all tokens."""
        return features_to_rows(x, self.comm_group) if self.tp_size > 1 else x


class DSV4OProjColumnParallelOp(CustomColumnParallelOp):
    """First half of DeepSeek-V4's output projection: a product for each group of heads.

    ``[T, G, K]``, all groups of this rank's tokens, to ``[P * T, G / P * N]``.
    """

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        """Exchange the own tokens' groups for the own groups of all tokens."""
        return features_to_rows(x, self.comm_group) if self.tp_size > 1 else x

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """One product for each group."""
        groups, inner = x.shape[1:]
        return grouped_linear(x, self.layer.weight.view(groups, -1, inner)).flatten(1)

    def finish(self, y: torch.Tensor) -> torch.Tensor:
        """The second half takes the groups as they are."""
        return y


class DSV4OProjRowParallelOp(MLPRowParallelOp):
    """Second half of DeepSeek-V4's output projection; takes what the first half returns."""


class ShardedCPColumnParallelOp(CustomColumnParallelOp):
    """Projections of context-parallel attention: whole weights, a part of every sequence."""

    local = True


class SharedExpertColumnParallelOp(CustomColumnParallelOp):
    """First half of shared experts that are whole on every rank, for the rank's own tokens."""

    local = True


class SharedExpertRowParallelOp(CustomRowParallelOp):
    """Second half of shared experts that are whole on every rank: nothing to add up."""

    local = True
