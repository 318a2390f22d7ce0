"""From the table of a model's tensors to that of a quantised checkpoint of it.

A rule of a weight becomes one rule for each tensor that the layer's scheme stores, so loading and
checking stay what they are: a missing scale is a missing tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts
from ascend_ops_core.quantized_weights import (
    Placement,
    QuantizationResolver,
    Scheme,
    WeightLayout,
    WeightPart,
    value_problem,
)
from ascend_ops_core.quantized_weights.weight import QuantizedWeight
from torch import nn

from ascend_models_deepseek.deepseek_v4.weights import ExpertRule, TensorRule, WeightTable

__all__ = ["WeightForms", "finish_weights"]

_SUFFIX = ".weight"
_EXPERT_TENSORS = {"weight": "", "scale": "_scale"}


@dataclass(frozen=True)
class QuantizedRule(TensorRule):
    """One stored tensor of a quantised layer.

    Attributes:
        placement: its forms, and where it goes.
    """

    placement: Placement | None = None

    @property
    def stored(self) -> Placement:
        """The placement."""
        assert self.placement is not None
        return self.placement

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes that the checkpoint may have."""
        return self.stored.shapes

    @property
    def loadable(self) -> tuple[torch.dtype, ...]:
        """Dtypes in which the checkpoint may store it."""
        return self.stored.stored.dtypes

    @property
    def filled(self) -> str | None:
        """The model's parameter that it goes to, if any."""
        parameter = self.stored.parameter
        return None if parameter is None else f"{self.param}.{parameter}"

    def value_problems(self, name: str, tensor: torch.Tensor) -> list[str]:
        """Values that would make numbers plausible and wrong."""
        problem = value_problem(self.stored.stored, tensor)
        return [] if problem is None else [f"{name}: {problem}"]

    def load(self, tensor: torch.Tensor, model: nn.Module) -> None:
        """Copy this rank's part of ``tensor`` to its place in ``model``."""
        one = self.stored
        if one.parameter is not None:
            target = model.get_parameter(f"{self.param}.{one.parameter}")
            target.data[one.target].copy_(one.convert(tensor)[one.source])


@dataclass(frozen=True)
class QuantizedExpertRule(QuantizedRule):
    """One stored tensor of a routed expert; see :class:`ExpertRule`.

    Attributes:
        expert: the logical expert.
        tensor: which of its weights.
    """

    expert: int = 0
    tensor: str = ""

    @property
    def filled(self) -> str | None:
        """The model's parameter that it goes to, if any."""
        parameter = self.stored.parameter
        return None if parameter is None else self.param + _EXPERT_TENSORS[parameter]

    @property
    def checked_module(self) -> str:
        """The stack of experts."""
        return self.param.rpartition(".")[0]

    def load(self, tensor: torch.Tensor, model: nn.Module) -> None:
        """See :meth:`QuantizedRule.load`; where the expert lies elsewhere, nothing is read."""
        experts = model.get_submodule(self.checked_module)
        assert isinstance(experts, AscendRoutedExperts)
        one = self.stored
        if one.parameter is None or not experts.holds(self.expert):
            return
        value = one.convert(tensor)
        part = self.tensor + _EXPERT_TENSORS[one.parameter]
        if one.parameter == "scale" and experts.get_parameter(_scale_of(self.param)).dim() == 2:
            value = value.squeeze(-1)
        experts.load_expert(self.expert, part, value)


@dataclass
class _Held:
    """The layers that lie below each other in one parameter."""

    scheme: Scheme
    names: list[str] = field(default_factory=list)
    parts: list[WeightPart] = field(default_factory=list)


class WeightForms:
    """What a checkpoint stores, and what a model therefore holds.

    Args:
        plain: the table of the model's tensors in its own dtype.
        resolver: of the checkpoint.

    Attributes:
        table: the table of the checkpoint's tensors.
        problems: what is wrong with the checkpoint's description, a line each.
        cache: what the description says about caches.
    """

    def __init__(self, plain: WeightTable, resolver: QuantizationResolver) -> None:
        weights = {
            name.removesuffix(_SUFFIX): rule
            for name, rule in plain.rules.items()
            if _is(name, rule)
        }
        self.cache = resolver.cache
        self._held: dict[str, _Held] = {}
        packed: dict[str, list[str]] = {}
        for layer, rule in weights.items():
            if not isinstance(rule, ExpertRule):
                packed.setdefault(rule.param, []).append(layer)
        # What a checkpoint may leave out, its description may leave out too.
        needed = [layer for layer, rule in weights.items() if not rule.optional]
        self.problems = resolver.problems(needed, packed.values())
        schemes = {layer: resolver.scheme(layer) for layer in weights}
        self._experts = {
            rule.param.rpartition(".")[0]: schemes[layer]
            for layer, rule in weights.items()
            if isinstance(rule, ExpertRule)
        }
        # A packed parameter whose layers differ is a problem already, and has no layout.
        for param, layers in packed.items():
            scheme = schemes[layers[0]]
            if scheme is None or any(schemes[one] != scheme for one in layers):
                continue
            held = _Held(scheme)
            for layer in layers:
                held.names.append(layer)
                held.parts.append(_part(weights[layer]))
            self._held[param] = held
        self.table = WeightTable(self._rules(plain, schemes), plain.ignored_prefixes)

    def experts(self, prefix: str) -> Scheme | None:
        """The scheme of a layer's routed experts, by the name of their module."""
        return self._experts.get(prefix)

    @property
    def schemes(self) -> set[Scheme]:
        """All schemes in the checkpoint."""
        found = {one.scheme for one in self._held.values()}
        return found | {one for one in self._experts.values() if one is not None}

    def held(self, param: str) -> QuantizedWeight | None:
        """What holds a quantised weight of the model; None for one in the model's dtype.

        Args:
            param: the parameter's name in the model.
        """
        held = self._held.get(param)
        return None if held is None else QuantizedWeight(held.scheme, held.parts)

    def _rules(
        self, plain: WeightTable, schemes: Mapping[str, Scheme | None]
    ) -> dict[str, TensorRule]:
        placements: dict[str, list[Placement]] = {}
        for held in self._held.values():
            layout = WeightLayout(held.scheme, held.parts)
            for index, name in enumerate(held.names):
                placements[name] = layout.placements(index)
        rules: dict[str, TensorRule] = {}
        for name, rule in plain.rules.items():
            layer = name.removesuffix(_SUFFIX)
            scheme = schemes.get(layer) if _is(name, rule) else None
            if scheme is None:
                rules[name] = rule
                continue
            kind: type[QuantizedRule] = QuantizedRule
            given: dict[str, Any] = {"shape": rule.shape, "param": rule.param}
            if isinstance(rule, ExpertRule):
                kind = QuantizedExpertRule
                given |= {"expert": rule.expert, "tensor": rule.tensor}
                found = WeightLayout(scheme, [WeightPart(rule.shape[0], rule.shape[1])]).placements(
                    0
                )
            elif layer in placements:
                found = placements[layer]
            else:
                rules[name] = rule
                continue
            for one in found:
                optional = one.stored.optional or rule.optional
                shape = one.shapes[0]
                rules[f"{layer}.{one.stored.suffix}"] = kind(
                    **given | {"shape": shape, "optional": optional, "placement": one}
                )
        return rules


def finish_weights(model: nn.Module) -> None:
    """Bring the quantised weights of a loaded model into the form of their products."""
    for module in model.modules():
        if isinstance(module, QuantizedWeight):
            module.finish()


def _is(name: str, rule: TensorRule) -> bool:
    """Whether a tensor is a matrix that a checkpoint may quantise."""
    return name.endswith(_SUFFIX) and len(rule.shape) == 2 and rule.below is None


def _scale_of(param: str) -> str:
    return param.rpartition(".")[2] + "_scale"


def _part(rule: TensorRule) -> WeightPart:
    """What a rank holds of a layer, from the slices of its rule."""
    rows, columns = rule.shape
    axes = [
        range(size)[part] for size, part in zip(rule.view or rule.shape, rule.source, strict=False)
    ]
    if rule.view is not None and axes:
        # [groups, rows, columns] of [groups * rows, columns].
        height = rule.view[1]
        first = range(axes[0].start * height, axes[0].stop * height)
        axes = [first, *axes[2:]]
    own = [(one.start, one.stop) for one in axes]
    return WeightPart(
        rows,
        columns,
        own[0] if own else None,
        own[1] if len(own) > 1 else None,
    )
