"""The runner of a layer in a model that vLLM runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ascend_fused_moe.runner import AscendMoERunner
from ascend_fused_moe.vllm.groups import tokens_of_replicas

__all__ = ["VllmMoERunner"]


class VllmMoERunner(AscendMoERunner):
    """A runner that takes the tokens of the replicas from vLLM's forward context.

    Every replica runs a step when one does, if need be on tokens that vLLM makes up, so that none
    waits for another in a layer. Nothing of a step is kept, so a graph may capture it.
    """

    def forward(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor | None = None,
        *,
        token_ids: torch.Tensor | None = None,
        active: torch.Tensor | None = None,
        tokens: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """See :meth:`ascend_fused_moe.runner.AscendMoERunner.forward`."""
        return super().forward(
            hidden_states,
            router_logits,
            token_ids=token_ids,
            active=active,
            tokens=tokens_of_replicas() if tokens is None else tokens,
        )
