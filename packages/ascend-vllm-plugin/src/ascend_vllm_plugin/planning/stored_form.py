"""In which form a quantized checkpoint stores the tensors of DeepSeek-V4.

Sources: the published checkpoints' naming as vLLM 0.27.1 reads it (``deepseek_v4/quant_config.py``)
for fp8 and 4-bit experts, and ModelSlim's ``quant_model_description.json`` for 8-bit integers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ascend_models_deepseek.deepseek_v4.weights import TensorRule
from ascend_ops_core.errors import InvalidInputError

from ascend_vllm_plugin.planning.weights import TensorClass, WeightFormat, tensor_class

MODELSLIM_FILE = "quant_model_description.json"
Stored = Mapping[str, tuple[tuple[int, ...], torch.dtype]]

_SCALES = (torch.float32, torch.float8_e8m0fnu)
_PACKED = (torch.int8, torch.uint8, torch.float4_e2m1fn_x2)


@dataclass(frozen=True)
class Form:
    """How one tensor must be stored.

    Attributes:
        shape: its shape in the file.
        dtypes: dtypes that its format allows.
    """

    shape: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]


def quantized_forms(
    rules: Mapping[str, TensorRule], weight_format: WeightFormat
) -> dict[str, Form]:
    """Every tensor that a format stores in another form than the model's, and its scales.

    Args:
        rules: the table of tensors.
        weight_format: ``fp8`` or ``fp8-mxfp4``; nothing is quantized in ``model``.
    """
    forms: dict[str, Form] = {}
    if weight_format not in (WeightFormat.FP8, WeightFormat.FP8_MXFP4):
        return forms
    for name, rule in rules.items():
        kind = tensor_class(name, rule)
        if kind not in (TensorClass.LINEAR, TensorClass.EXPERT):
            continue
        rows, columns = rule.shape
        scale = name.removesuffix("weight") + "scale"
        if kind is TensorClass.EXPERT and weight_format is WeightFormat.FP8_MXFP4:
            forms[name] = Form((rows, columns // 2), _PACKED)
            forms[scale] = Form((rows, columns // 32), (torch.float8_e8m0fnu, torch.uint8))
        else:
            forms[name] = Form((rows, columns), (torch.float8_e4m3fn,))
            forms[scale] = Form((-(-rows // 128), -(-columns // 128)), _SCALES)
    return forms


def without_quantization(
    forms: Mapping[str, Form], rules: Mapping[str, TensorRule], stored: Stored
) -> tuple[dict[str, tuple[tuple[int, ...], torch.dtype]], list[str]]:
    """The stored tensors as if they were unquantized, and where they break the format.

    Args:
        forms: of :func:`quantized_forms`.
        rules: the table of tensors.
        stored: shape and dtype by name.
    """
    plain: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    problems = []
    for name, (shape, dtype) in stored.items():
        form = forms.get(name)
        if form is None:
            plain[name] = shape, dtype
            continue
        if dtype not in form.dtypes:
            allowed = ", ".join(map(_short, form.dtypes))
            problems.append(f"dtype of {name} is {_short(dtype)}, the format has {allowed}")
        if shape != form.shape:
            problems.append(f"shape of {name} is {list(shape)}, the format has {list(form.shape)}")
        if name in rules:
            plain[name] = rules[name].shape, torch.bfloat16
    problems += [
        f"missing {name} {list(form.shape)}, the scale of a quantized tensor"
        for name, form in forms.items()
        if name not in stored and name not in rules
    ]
    return plain, problems


def without_modelslim(
    description: Mapping[str, Any], rules: Mapping[str, TensorRule], stored: Stored
) -> tuple[dict[str, tuple[tuple[int, ...], torch.dtype]], list[str]]:
    """The stored tensors as if ModelSlim had not quantized them, and what contradicts it.

    Args:
        description: ModelSlim's, which has an entry for every tensor, ``FLOAT`` or a format.
        rules: the table of tensors.
        stored: shape and dtype by name.
    """
    kinds = {n: kind for n, kind in description.items() if isinstance(kind, str) and "." in n}
    plain: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    problems = [
        f"{MODELSLIM_FILE} describes {name} ({kinds[name]}), which no file has"
        for name in sorted(set(kinds) - set(stored))
    ]
    for name, (shape, dtype) in stored.items():
        kind = kinds.get(name, "FLOAT")
        if kind == "FLOAT":
            plain[name] = shape, dtype
            if name not in kinds and dtype is torch.int8:
                problems.append(f"{name} is int8, and {MODELSLIM_FILE} does not describe it")
            continue
        if name.endswith(".weight") and kind.startswith("W8A8") and dtype is not torch.int8:
            problems.append(f"dtype of {name} is {_short(dtype)}, {MODELSLIM_FILE} says {kind}")
        # Scales and offsets are the format's own; the model's table has no word for them.
        if name in rules:
            plain[name] = shape, torch.bfloat16
    return plain, problems


def read_modelslim(directory: Path) -> dict[str, Any] | None:
    """ModelSlim's description in a directory, or None.

    Raises:
        InvalidInputError: it is no JSON object.
    """
    file = directory / MODELSLIM_FILE
    if not file.is_file():
        return None
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(str(file), f"no JSON: {error}", "Download it again.") from error
    if not isinstance(description, dict):
        raise InvalidInputError(str(file), "no JSON object", "Download it again.")
    return description


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
