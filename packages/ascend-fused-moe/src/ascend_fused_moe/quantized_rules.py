"""From the table of a model's tensors to that of a quantised checkpoint of it.

A rule of a weight becomes one rule for each tensor that the layer's scheme stores, so loading and
checking stay what they are: a missing scale is a missing tensor. Layers that the model holds in its
own dtype whatever the checkpoint has become that as soon as all their tensors are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from ascend_ops_core.checkpoint.table import TensorRule, WeightTable
from ascend_ops_core.errors import InvalidInputError
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

from ascend_fused_moe.checkpoint_quant import quant_of
from ascend_fused_moe.layers.expert_rule import ExpertRule
from ascend_fused_moe.layers.routed_experts import AscendRoutedExperts

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


class _Gathered:
    """The tensors of a layer that becomes the model's dtype, until the last of them is there.

    Args:
        scheme: of the layer.
        rule: of its weight.
    """

    def __init__(self, scheme: Scheme, rule: TensorRule) -> None:
        self.part = _part(rule)
        self.scheme = scheme
        self.rule = rule
        self._weight: QuantizedWeight | None = None
        self._there: set[str] = set()
        self._needed = {one.stored.suffix for one in self.placements() if one.parameter is not None}

    def placements(self) -> list[Placement]:
        """Of the layer's tensors."""
        return WeightLayout(self.scheme, [self.part]).placements(0)

    def take(self, one: Placement, tensor: torch.Tensor, model: nn.Module) -> None:
        """Keep this rank's part of a tensor; the last one fills the model's parameter."""
        if self._weight is None:
            with torch.device("cpu"):
                self._weight = QuantizedWeight(self.scheme, [self.part])
        assert one.parameter is not None
        own = self._weight.get_parameter(one.parameter)
        own.data[one.target].copy_(one.convert(tensor)[one.source])
        self._there.add(one.stored.suffix)
        if self._there >= self._needed:
            weight, self._weight = self._weight, None
            self._there.clear()
            weight.finish()
            target = model.get_parameter(self.rule.param).data[self.rule.target]
            weight.dequantize(target.view(weight.shape))


@dataclass(frozen=True)
class DequantizedRule(QuantizedRule):
    """One stored tensor of a quantised layer that the model holds in its own dtype.

    Attributes:
        layer: what of the layer is there already.
    """

    layer: _Gathered | None = None

    @property
    def filled(self) -> str | None:
        """The model's parameter that it goes to, if any."""
        return None if self.stored.parameter is None else self.param

    def load(self, tensor: torch.Tensor, model: nn.Module) -> None:
        """See :meth:`QuantizedRule.load`; the model's parameter is filled with the last tensor."""
        assert self.layer is not None
        if self.stored.parameter is not None:
            self.layer.take(self.stored, tensor, model)


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
        schemes = {layer: resolver.scheme(layer) for layer in weights}
        self._held: dict[str, _Held] = {}
        self._gathered = {
            layer: _Gathered(scheme, weights[layer])
            for layer, scheme in schemes.items()
            if scheme is not None and resolver.is_dequantized(layer)
        }
        packed: dict[str, list[str]] = {}
        for layer, rule in weights.items():
            if not isinstance(rule, ExpertRule) and not resolver.is_dequantized(layer):
                packed.setdefault(rule.param, []).append(layer)
        # What a checkpoint may leave out, its description may leave out too.
        needed = [layer for layer, rule in weights.items() if not rule.optional]
        self.problems = resolver.problems(needed, packed.values())
        self._experts = self._schemes_of_experts(weights, schemes)
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

    def _schemes_of_experts(
        self, weights: Mapping[str, TensorRule], schemes: Mapping[str, Scheme | None]
    ) -> dict[str, Scheme | None]:
        """By module; modules whose experts differ, or that are not computed, are problems."""
        found: dict[str, dict[str, Scheme | None]] = {}
        for layer, rule in weights.items():
            if isinstance(rule, ExpertRule):
                one = schemes[layer]
                name = "the model's dtype" if one is None else one.name
                found.setdefault(rule.param.rpartition(".")[0], {})[name] = one
        for module, several in found.items():
            if len(several) > 1:
                self.problems.append(
                    f"routed experts of {module} are stored as {' and '.join(sorted(several))}; "
                    "the experts of a layer have one scheme"
                )
        for scheme in {one.name: one for one in schemes.values() if one is not None}.values():
            if any(scheme in several.values() for several in found.values()):
                try:
                    quant_of(scheme, float_rows=True)
                except InvalidInputError as error:
                    self.problems.append(str(error))
        return {module: next(iter(several.values())) for module, several in found.items()}

    def experts(self, prefix: str) -> Scheme | None:
        """The scheme of a layer's routed experts, by the name of their module."""
        return self._experts.get(prefix)

    @property
    def schemes(self) -> set[Scheme]:
        """All schemes in which weights are held as they are stored."""
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
            elif layer in self._gathered:
                kind = DequantizedRule
                given |= {"layer": self._gathered[layer]}
                found = self._gathered[layer].placements()
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
