"""Bare modules with the parameters that a table of tensors names, for tests of loading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from ascend_ops_core.checkpoint.table import TensorRule, WeightTable
from torch import nn

from ascend_fused_moe.checkpoint_quant import quant_of
from ascend_fused_moe.layers.expert_rule import ExpertRule
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_fused_moe.quantized_rules import WeightForms

__all__ = ["ExpertSizes", "model_of"]

_UNSET = -7


@dataclass(frozen=True)
class ExpertSizes:
    """Routed experts of a layer.

    Attributes:
        experts: how many.
        hidden: hidden size.
        channels: of each expert, before ranks share it.
        rank: of this process.
        ranks: that have a slice of each expert.
    """

    experts: int
    hidden: int
    channels: int
    rank: int = 0
    ranks: int = 1

    def module(self, forms: WeightForms | None, name: str, dtype: torch.dtype) -> nn.Module:
        """The experts of the module ``name``, as the checkpoint stores them."""
        scheme = None if forms is None else forms.experts(name)
        return AscendRoutedExperts(
            self.experts,
            self.hidden,
            self.channels,
            dtype,
            quant=quant_of(scheme, float_rows=True),
            scale_dtype=None if scheme is None else scheme.format.scale_dtype,
            tp_rank=self.rank,
            tp_ranks=self.ranks,
        )


def model_of(
    plain: WeightTable,
    forms: WeightForms | None,
    experts: ExpertSizes,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """Modules for a table's parameters, quantised where ``forms`` says so.

    Args:
        plain: the table of the model's tensors in its own dtype.
        forms: of a quantised checkpoint, or None for a plain one.
        experts: of every layer.
        dtype: of what is not quantised.
    """
    root = nn.Module()
    params: dict[str, list[TensorRule]] = {}
    for rule in plain.rules.values():
        if rule.filled is not None:
            params.setdefault(rule.param, []).append(rule)
    for name, rules in params.items():
        *path, leaf = name.split(".")
        module = root
        for depth, part in enumerate(path):
            if part not in dict(module.named_children()):
                made: nn.Module = nn.Module()
                if part == "experts":
                    made = experts.module(forms, ".".join(path[: depth + 1]), dtype)
                module.add_module(part, made)
            module = module.get_submodule(part)
        if isinstance(rules[0], ExpertRule):
            continue
        held: Any = None if forms is None else forms.held(name)
        if held is not None:
            module.add_module(leaf, held)
            continue
        of = torch.int32 if rules[0].below is not None else dtype
        value = torch.full(_shape(rules), _UNSET, dtype=of)
        module.register_parameter(leaf, nn.Parameter(value, requires_grad=False))
    return root


def _shape(rules: list[TensorRule]) -> tuple[int, ...]:
    """Of a parameter, from the parts of this rank that lie below each other in it."""
    parts = [_cut(rule) for rule in rules]
    rows = sum(part[0] for part in parts) if rules[0].target else parts[0][0]
    return rows, *parts[0][1:]


def _cut(rule: TensorRule) -> tuple[int, ...]:
    shape = list(rule.view or rule.shape)
    for axis, part in enumerate(rule.source):
        shape[axis] = len(range(shape[axis])[part])
    return tuple(shape)
