"""What a model knows of its own layers that no checkpoint's description says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

__all__ = ["LayerRules"]


@dataclass(frozen=True)
class LayerRules:
    """Names of layers, as rules.

    Attributes:
        kept: patterns, searched in a layer's name, of layers that no checkpoint quantises unless
            it describes every layer by name.
        experts: pattern of the routed experts' layers.
        scale: suffix of the scales that DeepSeek's own fp8 format has in this model's checkpoints.
        packed: layers that the model computes as one, by the last part of its name:
            ``{"gate_up_proj": ("gate_proj", "up_proj")}``. They have one scheme.
        dequantized: patterns, searched the same way, of layers that the model holds in its own
            dtype however they are stored: they become that while they are loaded.
        renames: pairs of a pattern and its replacement (:func:`re.sub`), which turn this model's
            names into those that descriptions may use instead; each pair gives one more name.
    """

    kept: tuple[str, ...] = ()
    experts: str = r"\.experts\.\d+\."
    scale: str = "weight_scale_inv"
    packed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dequantized: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()

    def is_kept(self, layer: str) -> bool:
        """Whether no checkpoint quantises a layer."""
        return self._kept is not None and self._kept.search(layer) is not None

    def is_dequantized(self, layer: str) -> bool:
        """Whether the model holds a layer in its own dtype, whatever the checkpoint has."""
        return self._dequantized is not None and self._dequantized.search(layer) is not None

    def is_expert(self, layer: str) -> bool:
        """Whether a layer belongs to a routed expert."""
        return re.search(self.experts, layer) is not None

    def parts(self, layer: str) -> tuple[str, ...]:
        """The checkpoint's layers behind a layer of the model; itself if it is not packed."""
        prefix, _, last = layer.rpartition(".")
        if last not in self.packed:
            return (layer,)
        return tuple(f"{prefix}.{part}" if prefix else part for part in self.packed[last])

    def names(self, layer: str) -> tuple[str, ...]:
        """Names under which a description may have a checkpoint's layer, its own one first."""
        prefix, _, last = layer.rpartition(".")
        fused = (name for name, parts in self.packed.items() if last in parts)
        own = [layer, *(f"{prefix}.{name}" if prefix else name for name in fused)]
        renamed = [
            re.sub(pattern, replacement, name)
            for name in own
            for pattern, replacement in self.renames
        ]
        return tuple(dict.fromkeys([*own, *renamed]))

    @cached_property
    def _kept(self) -> re.Pattern[str] | None:
        return _any_of(self.kept)

    @cached_property
    def _dequantized(self) -> re.Pattern[str] | None:
        return _any_of(self.dequantized)


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile("|".join(f"(?:{one})" for one in patterns)) if patterns else None
