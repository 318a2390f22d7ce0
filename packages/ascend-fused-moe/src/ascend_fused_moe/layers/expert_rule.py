"""Where a checkpoint's tensor of one routed expert goes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ascend_ops_core.checkpoint.table import TensorRule
from torch import nn

from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts

__all__ = ["ExpertRule"]


@dataclass(frozen=True)
class ExpertRule(TensorRule):
    """Where one tensor of a routed expert goes: to every place of this rank that holds the expert.

    Attributes:
        expert: the logical expert.
        tensor: which of its tensors, as :meth:`AscendRoutedExperts.load_expert` names them.
    """

    expert: int = 0
    tensor: str = ""

    @property
    def checked_module(self) -> str:
        """The stack of experts."""
        return self.param.rpartition(".")[0]

    def load(self, tensor: torch.Tensor, model: nn.Module) -> None:
        """See :meth:`TensorRule.load`; where the expert lies elsewhere, nothing is read."""
        experts, name = model.get_submodule(self.checked_module), self.param.rpartition(".")[2]
        assert isinstance(experts, AscendRoutedExperts)
        if experts.holds(self.expert):
            value = tensor.to(experts.get_parameter(name).dtype)
            experts.load_expert(self.expert, self.tensor, value)
