"""What every dispatcher does."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from ascend_fused_moe.pipeline import (
    MoECombineMetadata,
    MoETokenDispatchInput,
    MoETokenDispatchOutput,
)

__all__ = ["MoETokenDispatcher"]


class MoETokenDispatcher(ABC):
    """Brings rows to the experts of the ranks, and their results back.

    A rank without rows makes both calls as well, since others wait for it.
    """

    @abstractmethod
    def token_dispatch(self, given: MoETokenDispatchInput) -> MoETokenDispatchOutput:
        """Bring the rows to the experts that they visit.

        Args:
            given: this rank's rows and their choices.
        """

    @abstractmethod
    def token_combine(self, rows: torch.Tensor, metadata: MoECombineMetadata) -> torch.Tensor:
        """Bring the results back, weight and sum them.

        Args:
            rows: ``[R, H]``, one for each row that was dispatched to this rank.
            metadata: from the dispatch of these rows.

        Returns:
            ``[N, H]`` for the rows that this rank dispatched.
        """
