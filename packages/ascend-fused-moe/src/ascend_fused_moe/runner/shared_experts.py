"""The experts that every token visits, and how ranks share their work."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from ascend_ops_core.communication import all_gather_and_unpad, pad_and_reduce, pad_to_rows
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.quantized_weights.weight import Weight, project
from torch import nn

from ascend_fused_moe.groups import ParallelGroups
from ascend_fused_moe.mlp import Activation

__all__ = ["AscendSharedExperts", "SharedExpertParallelMode"]


class SharedExpertParallelMode(Enum):
    """What a rank has of the shared experts: of their weights, and of the tokens.

    In the first two every rank of a part has all of its tokens, in the last each has a share.
    """

    TENSOR_PARALLEL = "tensor_parallel"
    """A slice of the weights: outputs are parts of a sum over ``tp``."""

    REPLICATED = "replicated"
    """All weights for all tokens that the rank has: outputs are whole, nothing is exchanged."""

    LOCAL_TOKENS = "local_tokens"
    """All weights for a share of the tokens; the shares of the outputs are gathered."""

    SEQUENCE_PARALLEL = "sequence_parallel"
    """A slice of the weights: tokens are gathered before, outputs reduce-scattered after."""


class AscendSharedExperts(nn.Module):
    """One gated network of all shared experts, in two parts that other work can run between.

    Args:
        w13: ``[2 * S, H]``, gate rows before up rows, or this rank's slice of ``S``.
        w2: ``[H, S]``, or the slice. Either may be quantised.
        groups: the layer's ranks.
        mode: what this rank has.
        sequence_parallel: the ranks of a part share its tokens.
        swiglu_limit: of the gated activation, as in the routed experts; None or 0 for none.
        activation: another one than SwiGLU, with its own limit; None for SwiGLU.

    Raises:
        InvalidInputError: weights that do not belong together, or a mode for the other layout of
            tokens.
    """

    def __init__(
        self,
        w13: Weight,
        w2: Weight,
        groups: ParallelGroups,
        mode: SharedExpertParallelMode,
        *,
        sequence_parallel: bool = False,
        swiglu_limit: float | None = None,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        if w13.shape[0] % 2 or w2.shape != (w13.shape[1], w13.shape[0] // 2):
            raise InvalidInputError(
                f"shared experts {tuple(w13.shape)} and {tuple(w2.shape)}",
                "expected [2S, H] and [H, S]",
                "Check the layout of the shared experts' weights.",
            )
        excluded = {
            True: SharedExpertParallelMode.TENSOR_PARALLEL,
            False: SharedExpertParallelMode.SEQUENCE_PARALLEL,
        }[sequence_parallel]
        if mode is excluded and groups.tp.world_size > 1:
            layout = "share a part's tokens" if sequence_parallel else "have all of a part's tokens"
            raise InvalidInputError(
                f"shared experts {mode.value!r}",
                f"the ranks {layout}",
                "Choose the other of tensor_parallel and sequence_parallel.",
            )
        self.w13: Any = _held(w13)
        self.w2: Any = _held(w2)
        self.groups = groups
        self.mode = mode
        self.sequence_parallel = sequence_parallel
        self.activation = activation or Activation(limit=swiglu_limit)

    @property
    def output_is_reduced(self) -> bool:
        """Whether outputs are whole, or still to be summed over ``tp``."""
        tensor_parallel = self.mode is SharedExpertParallelMode.TENSOR_PARALLEL
        return not tensor_parallel or self.groups.tp.world_size == 1

    def prepare_input_before_routed_experts(self, x: torch.Tensor, tokens: int) -> torch.Tensor:
        """The rows that this rank computes.

        Args:
            x: ``[T, H]`` as the layer was given it.
            tokens: of this rank's data-parallel part.
        """
        if self.mode is SharedExpertParallelMode.SEQUENCE_PARALLEL:
            return self._gather_sp_input(x, tokens)
        return self._prepare_local_dp_input(x) if self._shares_rows else x

    def part1(self, x: torch.Tensor) -> torch.Tensor:
        """``[N, S]``: gate, up and activation of ``x [N, H]``."""
        return self.activation(project(x, self.w13))

    def part2(self, activated: torch.Tensor) -> torch.Tensor:
        """``[N, H]`` from ``activated [N, S]``."""
        return project(activated, self.w2)

    def finalize(self, out: torch.Tensor, rows: int, tokens: int) -> torch.Tensor:
        """The outputs of the tokens that this rank was given.

        Args:
            out: ``[N, H]``, for the rows of :meth:`prepare_input_before_routed_experts`.
            rows: tokens that the layer was given here.
            tokens: of this rank's data-parallel part.

        Returns:
            ``[rows, H]``; see :attr:`output_is_reduced`.
        """
        if self.mode is SharedExpertParallelMode.SEQUENCE_PARALLEL:
            return self._pad_and_reduce_scatter(out, rows, tokens)
        return self._finalize_local_dp_output(out, rows) if self._shares_rows else out

    @property
    def _shares_rows(self) -> bool:
        local = self.mode is SharedExpertParallelMode.LOCAL_TOKENS
        return local and not self.sequence_parallel and self.groups.tp.world_size > 1

    def _prepare_local_dp_input(self, x: torch.Tensor) -> torch.Tensor:
        share = -(-x.shape[0] // self.groups.tp.world_size)
        first = self.groups.tp.rank_in_group * share
        return x[first : first + share]

    def _finalize_local_dp_output(self, out: torch.Tensor, rows: int) -> torch.Tensor:
        if not rows:
            return out
        share = -(-rows // self.groups.tp.world_size)
        return self.groups.tp.all_gather(pad_to_rows(out, share), 0)[:rows]

    def _gather_sp_input(self, x: torch.Tensor, tokens: int) -> torch.Tensor:
        if self.groups.tp.world_size == 1:
            return x
        return all_gather_and_unpad(x, [tokens], self.groups.tp.world_size, self.groups.tp)

    def _pad_and_reduce_scatter(self, out: torch.Tensor, rows: int, tokens: int) -> torch.Tensor:
        if self.groups.tp.world_size == 1:
            return out
        tp = self.groups.tp
        return pad_and_reduce(out, [tokens], tp.world_size, tp)[:rows]


def _held(weight: Weight) -> Weight:
    if isinstance(weight, torch.Tensor):
        return nn.Parameter(weight, requires_grad=False)
    return weight
