"""What checkpoints say about their quantisation: DeepSeek's, MXFP8's and ModelSlim's way."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.quantized_weights.formats import Rows, Scheme
from ascend_ops_core.quantized_weights.layer_rules import LayerRules
from ascend_ops_core.quantized_weights.schemes import (
    MODELSLIM,
    fp8_block,
    fp8_scaled,
    mxfp4,
    mxfp8,
)

__all__ = ["CacheDescription", "DeepseekDescription", "Description", "ModelSlimDescription"]

MODELSLIM_FILE = "quant_model_description.json"
CONFIG_KEY = "quantization_config in config.json"


@dataclass(frozen=True)
class CacheDescription:
    """How a checkpoint wants caches to be stored; None for the model's dtype.

    Attributes:
        kv: ``"int8"`` (ModelSlim's C8 and FAKQuant) or ``"float8_e4m3fn"``.
        index: ``"int8"`` (ModelSlim's INT8_DYNAMIC), of indexer keys.
    """

    kv: str | None = None
    index: str | None = None


class Description(Protocol):
    """Where a checkpoint says which layer is stored how.

    Attributes:
        source: the file or key that says it.
        cache: what it says about caches.
    """

    source: str
    cache: CacheDescription

    def scheme(self, layer: str) -> Scheme | None:
        """The scheme of a checkpoint's layer; None for a layer that is not quantised."""

    def problems(self, layers: Iterable[str]) -> list[str]:
        """What is wrong with the description itself, for a model with these layers."""


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`` (closest: ...)`` for an error message, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" (closest: {near[0]})" if near else ""


class IgnoredLayers:
    """Layers that a config excludes: by name, by the end or the beginning of it, or by ``re:``.

    Args:
        entries: of the config.
        rules: names of the model's layers.
    """

    def __init__(self, entries: Iterable[str], rules: LayerRules) -> None:
        self._names = {one for one in entries if not one.startswith("re:")}
        self._patterns = [re.compile(one[3:]) for one in entries if one.startswith("re:")]
        self._rules = rules

    def __contains__(self, layer: str) -> bool:
        return any(self._has(name) for name in self._rules.names(layer))

    def _has(self, name: str) -> bool:
        if any(pattern.match(name) for pattern in self._patterns):
            return True
        # A module's name stands for all that is below it.
        parts = name.split(".")
        return any(".".join(parts[:count]) in self._names for count in range(1, len(parts) + 1))


class DeepseekDescription:
    """One format for all layers but the model's own exceptions, as DeepSeek and MiniMax write it.

    Args:
        config: the model's config with its ``quantization_config``.
        rules: names of the model's layers.

    Raises:
        InvalidInputError: a format that is not known.
    """

    def __init__(self, config: Mapping[str, Any], rules: LayerRules) -> None:
        given = config["quantization_config"]
        self.source = CONFIG_KEY
        self.cache = CacheDescription()
        self._rules = rules
        ignored = given.get("ignored_layers") or given.get("modules_to_not_convert") or ()
        self._ignored = IgnoredLayers(ignored, rules)
        self._linear, self._expert = _deepseek_schemes(config, given, rules)

    def scheme(self, layer: str) -> Scheme | None:
        """See :class:`Description`."""
        if self._rules.is_kept(layer) or layer in self._ignored:
            return None
        return self._expert if self._rules.is_expert(layer) else self._linear

    def problems(self, layers: Iterable[str]) -> list[str]:
        """See :class:`Description`."""
        return []


def _deepseek_schemes(
    config: Mapping[str, Any], given: Mapping[str, Any], rules: LayerRules
) -> tuple[Scheme, Scheme]:
    """The schemes of linear layers and of routed experts."""
    method = given.get("quant_method")
    if method == "mxfp8":
        return mxfp8(rules.scale), mxfp8(rules.scale)
    block = given.get("weight_block_size")
    if block is None:
        # A model whose experts have a dtype of their own is DeepSeek-V4, with blocks always.
        if "expert_dtype" not in config and rules.scale != "scale":
            static = given.get("activation_scheme") == "static"
            scheme = fp8_scaled(channels=False, static_input=static)
            return scheme, scheme
        block = [128, 128]
    _check_block(block)
    height, width = block
    experts = _expert_dtype(config, rules)
    powers = str(given.get("scale_fmt") or "").lower() == "ue8m0" and rules.scale == "scale"
    if experts is not None:
        # vLLM tells the scales' dtype from that of the experts (``is_scale_e8m0``).
        powers = experts == "fp4"
    linear = fp8_block(rules.scale, powers=powers, block=(height, width))
    if experts == "fp4":
        algorithm = str(given.get("moe_quant_algo") or "").upper()
        if algorithm not in ("", "MXFP4"):
            raise InvalidInputError(
                f"moe_quant_algo={given['moe_quant_algo']!r} in {CONFIG_KEY}",
                "experts of 4 bits are MXFP4",
                "Use a checkpoint with MXFP4 or fp8 experts.",
            )
        return linear, mxfp4("weight", rules.scale, Rows.MXFP8)
    return linear, linear


def _expert_dtype(config: Mapping[str, Any], rules: LayerRules) -> str | None:
    """``fp4`` or ``fp8`` of DeepSeek-V4, which alone writes it; None elsewhere."""
    if rules.scale != "scale":
        return None
    # Without a word about experts, vLLM takes them for 4-bit ones.
    experts = str(config.get("expert_dtype") or "fp4")
    if experts not in ("fp4", "fp8"):
        raise InvalidInputError(
            f"expert_dtype={experts!r} in config.json",
            "experts are stored in 'fp4' or 'fp8'",
            "Correct config.json, or use another checkpoint.",
        )
    return experts


def _check_block(block: Any) -> None:
    whole = isinstance(block, (list, tuple)) and len(block) == 2
    if not whole or not all(isinstance(one, int) and one > 0 for one in block):
        raise InvalidInputError(
            f"weight_block_size={block!r} in {CONFIG_KEY}",
            "it is two positive numbers, rows and columns of a block",
            "Correct config.json.",
        )


class ModelSlimDescription:
    """ModelSlim's file: a word for every tensor, and some for caches.

    Args:
        words: the JSON object.
        rules: names of the model's layers.
    """

    def __init__(self, words: Mapping[str, Any], rules: LayerRules) -> None:
        self.source = MODELSLIM_FILE
        self._rules = rules
        self._kinds = {n: k for n, k in words.items() if isinstance(k, str) and "." in n}
        kv = words.get("kv_cache_type") or words.get("kv_quant_type") or words.get("fa_quant_type")
        index = words.get("indexer_quant_type")
        self._words = {"kv": kv, "indexer_quant_type": index, "group_size": words.get("group_size")}
        self.cache = CacheDescription(
            "int8" if kv in ("C8", "FAKQuant") else None,
            "int8" if index == "INT8_DYNAMIC" else None,
        )

    def scheme(self, layer: str) -> Scheme | None:
        """See :class:`Description`; a layer that is not described counts as not quantised."""
        return MODELSLIM.get(self._kind(layer) or "FLOAT")

    def problems(self, layers: Iterable[str]) -> list[str]:
        """See :class:`Description`."""
        lines = []
        described = [name.removesuffix(".weight") for name in self._kinds]
        used: set[str] = set()
        missing = []
        for layer in layers:
            kind = self._kind(layer)
            if kind is None:
                missing.append(layer)
                continue
            used.update(self._rules.names(layer))
            if kind not in MODELSLIM:
                lines.append(
                    f"{MODELSLIM_FILE} has {kind!r} for {layer}, known are "
                    f"{', '.join(MODELSLIM)}{closest(kind, MODELSLIM)}"
                )
        strangers = [name for name in described if name not in used]
        lines += [
            f"{MODELSLIM_FILE} does not describe {layer}.weight"
            f"{closest(layer, strangers, cutoff=0.8)}"
            for layer in missing
        ]
        if self._words["kv"] not in (None, "FLOAT", "C8", "FAKQuant"):
            lines.append(f"{MODELSLIM_FILE} has caches of {self._words['kv']!r}, known is 'C8'")
        if self._words["indexer_quant_type"] not in (None, "FLOAT", "INT8_DYNAMIC"):
            lines.append(
                f"{MODELSLIM_FILE} has indexer_quant_type="
                f"{self._words['indexer_quant_type']!r}, known is 'INT8_DYNAMIC'"
            )
        return lines

    def _kind(self, layer: str) -> str | None:
        for name in self._rules.names(layer):
            kind = self._kinds.get(f"{name}.weight")
            if kind is not None:
                return kind
        return None
