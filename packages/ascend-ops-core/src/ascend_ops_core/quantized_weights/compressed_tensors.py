"""What compressed-tensors' config says, as far as vLLM 0.27.1 parses it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.quantized_weights.descriptions import (
    CONFIG_KEY,
    CacheDescription,
    IgnoredLayers,
)
from ascend_ops_core.quantized_weights.formats import Rows, Scheme
from ascend_ops_core.quantized_weights.layer_rules import LayerRules
from ascend_ops_core.quantized_weights.schemes import (
    MX_COLUMNS,
    fp8_block,
    fp8_scaled,
    int8_channel,
    mxfp4,
    mxfp8,
)

__all__ = ["CompressedTensorsDescription"]

_EVERY_LINEAR = "Linear"


class CompressedTensorsDescription:
    """Groups of layers with a scheme each, and layers that are left alone.

    Args:
        given: ``quantization_config``.
        rules: names of the model's layers.

    Raises:
        InvalidInputError: groups with formats that are not known; all of them are named.
    """

    def __init__(self, given: Mapping[str, Any], rules: LayerRules) -> None:
        self.source = CONFIG_KEY
        self._rules = rules
        self._ignored = IgnoredLayers(given.get("ignore") or (), rules)
        self._groups: list[tuple[tuple[str, ...], Scheme]] = []
        unknown = []
        for name, group in (given.get("config_groups") or {}).items():
            scheme = _scheme_of(group, str(group.get("format") or given.get("format") or ""))
            if scheme is None:
                unknown.append(f"{name} ({_said(group)})")
            else:
                self._groups.append((tuple(group.get("targets") or ()), scheme))
        if unknown or not self._groups:
            raise InvalidInputError(
                f"config_groups {', '.join(unknown) or '(none)'} in {CONFIG_KEY}",
                "known are fp8 per tensor, channel or block, int8 per channel, MXFP8 and MXFP4, "
                "all of them symmetric",
                "Quantise the checkpoint with one of these.",
            )
        caches = given.get("kv_cache_scheme") or {}
        kv: dict[tuple[Any, Any], str] = {("float", 8): "float8_e4m3fn", ("int", 8): "int8"}
        self.cache = CacheDescription(kv.get((caches.get("type"), caches.get("num_bits"))))

    def scheme(self, layer: str) -> Scheme | None:
        """See :class:`~ascend_ops_core.quantized_weights.descriptions.Description`."""
        if layer in self._ignored:
            return None
        names = self._rules.names(layer)
        for targets, scheme in self._groups:
            if any(_meets(name, target) for target in targets for name in names):
                return scheme
        if self._rules.is_kept(layer):
            return None
        return next((one for targets, one in self._groups if _EVERY_LINEAR in targets), None)

    def problems(self, layers: Iterable[str]) -> list[str]:
        """See :class:`~ascend_ops_core.quantized_weights.descriptions.Description`."""
        return []


def _meets(name: str, target: str) -> bool:
    if target.startswith("re:"):
        return re.match(target[3:], name) is not None
    return name == target


def _scheme_of(group: Mapping[str, Any], form: str) -> Scheme | None:
    weights = group.get("weights") or {}
    inputs = group.get("input_activations")
    if not weights.get("symmetric", True):
        return None
    key = weights.get("type"), weights.get("num_bits"), weights.get("strategy")
    static = inputs is not None and inputs.get("dynamic") is False
    if key == ("float", 8, "block"):
        block = tuple(weights.get("block_structure") or (128, 128))
        return fp8_block("weight_scale", powers=False, block=(int(block[0]), int(block[1])))
    if key in (("float", 8, "channel"), ("float", 8, "tensor")):
        return fp8_scaled(channels=key[2] == "channel", static_input=static)
    if key == ("int", 8, "channel") and inputs is not None and inputs.get("num_bits") == 8:
        return int8_channel(static_input=static)
    if key[2] == "group" and weights.get("group_size") == MX_COLUMNS and "mxfp" in form:
        if key[1] == 8:
            return mxfp8("weight_scale")
        return mxfp4("weight_packed", "weight_scale", Rows.FLOAT)
    return None


def _said(group: Mapping[str, Any]) -> str:
    weights = group.get("weights") or {}
    words = ("num_bits", "type", "strategy", "group_size", "symmetric")
    return ", ".join(f"{word}={weights[word]!r}" for word in words if word in weights) or "empty"
