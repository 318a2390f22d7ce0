"""Which layer of a model is stored in which scheme: the one place that decides it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.quantized_weights.compressed_tensors import CompressedTensorsDescription
from ascend_ops_core.quantized_weights.descriptions import (
    CONFIG_KEY,
    MODELSLIM_FILE,
    CacheDescription,
    DeepseekDescription,
    Description,
    ModelSlimDescription,
    closest,
)
from ascend_ops_core.quantized_weights.formats import Scheme
from ascend_ops_core.quantized_weights.layer_rules import LayerRules

__all__ = ["QuantizationResolver", "read_modelslim"]

_METHODS = ("fp8", "deepseek_v4_fp8", "mxfp8", "compressed-tensors")


class QuantizationResolver:
    """The schemes of a checkpoint's layers.

    Args:
        description: what the checkpoint says; None for one that is not quantised.
        rules: names of the model's layers.
    """

    def __init__(self, description: Description | None, rules: LayerRules) -> None:
        self._description = description
        self._rules = rules

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        rules: LayerRules,
        modelslim: Mapping[str, Any] | None = None,
    ) -> QuantizationResolver:
        """The resolver of a checkpoint.

        Args:
            config: the model's ``config.json``.
            rules: names of the model's layers.
            modelslim: ModelSlim's description (:func:`read_modelslim`), which decides where there
                is one.

        Raises:
            InvalidInputError: a method or format that is not known; its message names the known
                ones and the closest of them.
        """
        if modelslim is not None:
            return cls(ModelSlimDescription(modelslim, rules), rules)
        given = config.get("quantization_config")
        if not given:
            return cls(None, rules)
        method = given.get("quant_method") if isinstance(given, Mapping) else given
        if method == "compressed-tensors":
            return cls(CompressedTensorsDescription(given, rules), rules)
        if method not in _METHODS:
            raise InvalidInputError(
                f"quant_method={method!r} in {CONFIG_KEY}",
                f"known are {', '.join(_METHODS)}, and ModelSlim's {MODELSLIM_FILE}"
                f"{closest(str(method), _METHODS)}",
                "Use a checkpoint in one of these formats, or an unquantised one.",
            )
        if given.get("fmt", "e4m3") != "e4m3":
            raise InvalidInputError(
                f"fmt={given['fmt']!r} in {CONFIG_KEY}",
                "values are 'e4m3'",
                "Use a checkpoint in float8_e4m3fn.",
            )
        return cls(DeepseekDescription(config, rules), rules)

    @property
    def source(self) -> str | None:
        """Where the checkpoint says it; None for one that is not quantised."""
        return None if self._description is None else self._description.source

    @property
    def cache(self) -> CacheDescription:
        """What the checkpoint says about caches."""
        return CacheDescription() if self._description is None else self._description.cache

    def scheme(self, layer: str) -> Scheme | None:
        """The scheme of a layer; None if it is stored in the model's dtype.

        Args:
            layer: its name in the checkpoint, without ``.weight``, or that of a packed layer of
                the model, whose parts then have to agree.

        Raises:
            InvalidInputError: the parts of a packed layer have several schemes.
        """
        if self._description is None:
            return None
        parts = self._rules.parts(layer)
        schemes = [self._description.scheme(part) for part in parts]
        if len({_name(one) for one in schemes}) > 1:
            raise InvalidInputError(
                f"packed layer {layer}: "
                + ", ".join(f"{p} is {_name(s)}" for p, s in zip(parts, schemes, strict=True)),
                "the parts of a packed layer have one scheme",
                f"Correct {self.source}, or quantise all of them alike.",
            )
        return schemes[0]

    def held(self, layer: str) -> Scheme | None:
        """The scheme in which a model holds a layer; None if it holds it in its own dtype.

        Args:
            layer: see :meth:`scheme`.

        Raises:
            InvalidInputError: see :meth:`scheme`.
        """
        return None if self._rules.is_dequantized(layer) else self.scheme(layer)

    def is_dequantized(self, layer: str) -> bool:
        """Whether a layer that is stored quantised becomes the model's dtype while it is loaded."""
        return self._rules.is_dequantized(layer) and self.scheme(layer) is not None

    def problems(self, layers: Iterable[str], packed: Iterable[Iterable[str]] = ()) -> list[str]:
        """Everything that is wrong with the description, a line each.

        Args:
            layers: every layer of the checkpoint that could be quantised.
            packed: those of them that the model computes as one, where the names do not tell.
        """
        if self._description is None:
            return []
        layers = list(layers)
        lines = self._description.problems(layers)
        groups = {tuple(group) for group in packed}
        known = set(layers)
        for prefix in {layer.rpartition(".")[0] for layer in layers}:
            for name in self._rules.packed:
                parts = self._rules.parts(f"{prefix}.{name}" if prefix else name)
                if known.issuperset(parts):
                    groups.add(parts)
        for group in sorted(groups):
            schemes = {part: _name(self._description.scheme(part)) for part in group}
            if len(set(schemes.values())) > 1:
                said = ", ".join(f"{part} is {name}" for part, name in schemes.items())
                lines.append(f"{self.source}: {said}; they are computed as one layer")
        return lines


def read_modelslim(directory: Path) -> dict[str, Any] | None:
    """ModelSlim's description in a directory, or None.

    Raises:
        InvalidInputError: it is no JSON object.
    """
    file = directory / MODELSLIM_FILE
    if not file.is_file():
        return None
    try:
        words = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(str(file), f"no JSON: {error}", "Download it again.") from error
    if not isinstance(words, dict):
        raise InvalidInputError(str(file), "no JSON object", "Download it again.")
    return words


def _name(scheme: Scheme | None) -> str:
    return "not quantised" if scheme is None else scheme.name
