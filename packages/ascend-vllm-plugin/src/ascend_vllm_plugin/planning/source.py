"""The model that is planned for: its config, and the headers of its safetensors files if any."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ascend_ops_core.checkpoint.headers import read_headers
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.quantized_weights import QuantizationResolver
from ascend_ops_core.quantized_weights.descriptions import CONFIG_KEY

from ascend_vllm_plugin.planning.models import (
    MODEL_TYPES,
    V4,
    ModelSpec,
    description_at_the_top,
    layer_rules,
    read_spec,
    resolver_of,
)
from ascend_vllm_plugin.planning.weights import WeightFormat

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_FORMAT_OF_EXPERTS = {"fp4": WeightFormat.FP8_MXFP4, "fp8": WeightFormat.FP8}


@dataclass(frozen=True)
class ModelSource:
    """A model as far as it is known without its weights.

    Attributes:
        path: what was given.
        config: ``config.json``.
        spec: the same, validated.
        stored: shape and dtype of every stored tensor; empty without safetensors files.
    """

    path: Path
    config: Mapping[str, Any]
    spec: ModelSpec
    stored: Mapping[str, tuple[tuple[int, ...], torch.dtype]]

    @property
    def resolver(self) -> QuantizationResolver:
        """Which layer is stored how.

        Raises:
            InvalidInputError: a quantization that this version does not know.
        """
        return resolver_of(self.config, self.path)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all stored tensors."""
        return sum(torch.Size(shape).numel() * d.itemsize for shape, d in self.stored.values())


def read_model(path: Path) -> ModelSource:
    """Read a model's directory, or its config file alone.

    Raises:
        InvalidInputError: there is no config, or it describes no model that can be planned.
        CheckpointError: safetensors files with a dtype that torch does not have.
    """
    config = read_config(path)
    stored = read_headers(path) if path.is_dir() else {}
    return ModelSource(path, config, read_spec(config), stored)


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object of ``path``, or of ``config.json`` in it.

    Raises:
        InvalidInputError: no such file, no JSON object, or another kind of model.
    """
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise InvalidInputError(
            f"model {path}", "no config.json there", "Give a model's directory or its config.json."
        )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{file}", f"no JSON: {error}", "Download it again.") from error
    if not isinstance(config, dict) or config.get("model_type") not in MODEL_TYPES:
        kind = config.get("model_type") if isinstance(config, dict) else type(config).__name__
        raise InvalidInputError(
            f"model_type={kind!r}",
            f"this version knows {', '.join(map(repr, MODEL_TYPES))}",
            "Give the config.json of one of these models.",
        )
    return config


def dtype_of(config: Mapping[str, Any], asked: str, weight_format: WeightFormat) -> torch.dtype:
    """The model's dtype: what is asked for, or what vLLM takes for ``auto``.

    Raises:
        InvalidInputError: an unknown name.
    """
    if asked != "auto":
        if asked not in _DTYPES:
            raise InvalidInputError(
                f"dtype={asked!r}", f"known are auto, {', '.join(_DTYPES)}", "Use one of them."
            )
        return _DTYPES[asked]
    stored = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    # vLLM serves float32 checkpoints in bfloat16 unless told otherwise.
    if stored == "float32" or weight_format is not WeightFormat.MODEL:
        return torch.bfloat16
    return _DTYPES.get(stored, torch.bfloat16)


def weight_format_of(
    config: Mapping[str, Any], asked: str, resolver: QuantizationResolver | None = None
) -> WeightFormat:
    """How matrices are stored: what is asked for, or what the checkpoint's description says.

    Args:
        config: the model's.
        asked: a format, or ``"auto"``.
        resolver: of the checkpoint's directory, where ModelSlim's description may lie; None for
            what the config alone says.

    Raises:
        InvalidInputError: an unknown name, ``stored`` without a description, or one that this
            version does not know.
    """
    known = ", ".join(WeightFormat)
    if asked not in ("auto", *WeightFormat):
        raise InvalidInputError(
            f"weight format {asked!r}", f"known are auto, {known}", "Use one of them."
        )
    if asked not in ("auto", WeightFormat.STORED):
        return WeightFormat(asked)
    if resolver is None:
        resolver = QuantizationResolver.of(description_at_the_top(config), layer_rules(config))
    if resolver.source is None and asked == "auto":
        return WeightFormat.MODEL
    if resolver.source is None:
        raise InvalidInputError(
            "weight format 'stored'",
            "the checkpoint describes no quantization",
            "Leave --weight-format at auto.",
        )
    given = config.get("quantization_config")
    method = given.get("quant_method") if isinstance(given, Mapping) else None
    if asked == "auto" and resolver.source == CONFIG_KEY and method == "fp8":
        # Without a word about experts, vLLM takes those of DeepSeek-V4 for 4-bit ones.
        experts = "fp4" if config.get("model_type") == V4 else "fp8"
        return _FORMAT_OF_EXPERTS[config.get("expert_dtype") or experts]
    return WeightFormat.STORED
