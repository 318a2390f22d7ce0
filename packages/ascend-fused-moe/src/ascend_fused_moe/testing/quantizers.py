"""Quantised tiny checkpoints in the real layouts, and what they stand for.

A writer takes a plain checkpoint and writes two: the quantised one, and a float32 one with the
dequantised weights, which transformers reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ascend_ops_core.ops.quantization import (
    block_dequantize,
    block_quantize,
    dynamic_quantize,
    mxfp4_dequantize,
    mxfp4_quantize,
    mxfp8_dequantize,
    mxfp8_quantize,
)
from safetensors.torch import load_file, save_file

__all__ = [
    "FP8",
    "FP8_BLOCKS",
    "INT8_CHANNELS",
    "Layout",
    "blocks",
    "compressed",
    "int8",
    "mxfp4",
    "mxfp8",
    "w4a8_dynamic",
    "w8a8_dynamic",
    "w8a8_static",
    "write_quantised",
]

Stored = dict[str, torch.Tensor]
Quantise = Callable[[torch.Tensor], tuple[Stored, torch.Tensor]]

_INT4_LARGEST = 7
_INPUT_SCALE = 0.04


def blocks(suffix: str, powers: bool) -> Quantise:
    """fp8 in blocks of 128 x 128; scales are float32, or powers of two in one byte each."""

    def quantise(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
        dtype = torch.uint8 if powers else torch.float32
        q, scale = block_quantize(weight, rows=128, scale_dtype=dtype)
        plain = block_dequantize(q, scale, torch.float32, rows=128)
        scale = scale.view(torch.float8_e8m0fnu) if powers else scale
        return {"weight": q, suffix: scale}, plain

    return quantise


def mxfp4(weight_suffix: str, scale_suffix: str) -> Quantise:
    """MXFP4, two values in a byte."""

    def quantise(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
        q, scale = mxfp4_quantize(weight)
        plain = mxfp4_dequantize(q, scale, torch.float32)
        return {
            weight_suffix: q.view(torch.int8),
            scale_suffix: scale.view(torch.float8_e8m0fnu),
        }, plain

    return quantise


def mxfp8(suffix: str) -> Quantise:
    """MXFP8, powers of two in a byte each."""

    def quantise(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
        q, scale = mxfp8_quantize(weight)
        return {"weight": q, suffix: scale}, mxfp8_dequantize(q, scale, torch.float32)

    return quantise


def w8a8_dynamic(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
    """ModelSlim's W8A8_DYNAMIC."""
    q, scale = dynamic_quantize(weight)
    scale = scale[:, None].contiguous()
    stored = {"weight": q, "weight_scale": scale, "weight_offset": torch.zeros_like(scale)}
    return stored, q.float() * scale


def int8(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
    """compressed-tensors' int8 by channel."""
    stored, plain = w8a8_dynamic(weight)
    del stored["weight_offset"]
    return stored, plain


def w8a8_static(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
    """ModelSlim's W8A8."""
    q, scale = dynamic_quantize(weight)
    return {
        "weight": q,
        "deq_scale": scale * _INPUT_SCALE,
        "input_scale": torch.tensor([_INPUT_SCALE]),
        "input_offset": torch.zeros(1),
        "quant_bias": torch.zeros(len(scale), dtype=torch.int32),
    }, q.float() * scale[:, None]


def w4a8_dynamic(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
    """ModelSlim's W4A8_DYNAMIC."""
    scale = weight.abs().amax(1, keepdim=True) / _INT4_LARGEST
    codes = (weight / scale).round()
    nibbles = (codes.to(torch.int8) & 0xF).view(torch.uint8)
    return {
        "weight": (nibbles[0::2] | nibbles[1::2] << 4).view(torch.int8),
        "weight_scale": scale,
        "weight_offset": torch.zeros_like(scale),
        "scale_bias": 8 * (codes * scale).sum(1, keepdim=True),
    }, codes * scale


FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
"""``quantization_config`` as DeepSeek writes it."""


INT8_CHANNELS = {"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": True}
FP8_BLOCKS = {
    "type": "float",
    "num_bits": 8,
    "strategy": "block",
    "block_structure": [128, 128],
    "symmetric": True,
}
"""What compressed-tensors says of weights."""


def compressed(ignore: list[str], groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """``quantization_config`` as compressed-tensors writes it.

    Args:
        ignore: layers that are left alone.
        groups: what is said of weights, by target.
    """
    return {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision" if len(groups) > 1 else "int-quantized",
        "ignore": ignore,
        "config_groups": {
            f"group_{number}": {
                "targets": [target],
                "weights": dict(weights),
                "input_activations": {"type": weights["type"], "num_bits": 8, "dynamic": True},
            }
            for number, (target, weights) in enumerate(groups.items())
        },
    }


@dataclass(frozen=True)
class Layout:
    """How a checkpoint is quantised.

    Attributes:
        linear: how linear layers are stored.
        expert: how routed experts are.
        config: what ``config.json`` adds.
        words: ModelSlim's words for both, where it describes the checkpoint.
        described: what its description says beside the layers.
        beside: more tensors for each layer's attention, by the end of their names.
        kept: pattern of tensors that stay as they are; None for the model's.
        apart: layers that are stored otherwise: a pattern of names, how, and ModelSlim's word.
    """

    linear: Quantise
    expert: Quantise
    config: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, str] | None = None
    described: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, torch.Tensor] = field(default_factory=dict)
    kept: str | None = None
    apart: tuple[tuple[str, Quantise, str], ...] = ()

    def of(self, name: str, *, expert: bool) -> tuple[Quantise, str]:
        """How a tensor is stored, and ModelSlim's word for it."""
        for pattern, quantise, word in self.apart:
            if re.search(pattern, name):
                return quantise, word
        word = "" if self.words is None else self.words[expert]
        return (self.expert if expert else self.linear), word


def write_quantised(
    plain: Path, quantised: Path, dequantised: Path, layout: Layout, *, kept: str, experts: str
) -> None:
    """Write a plain checkpoint again, quantised, and as what the quantised one stands for.

    Args:
        plain: its directory.
        quantised: directory to write, in the layout of published checkpoints.
        dequantised: directory to write, in float32.
        layout: how.
        kept: pattern of tensors that stay as they are.
        experts: pattern of those of routed experts.
    """
    stored: Stored = {}
    floats: Stored = {}
    description: dict[str, Any] = {"model_quant_type": "mixed"} | dict(layout.described)
    for name, tensor in load_file(plain / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if layer == name or tensor.dim() != 2 or re.search(layout.kept or kept, name):
            stored[name] = floats[name] = tensor
            description[name] = "FLOAT"
            continue
        quantise, word = layout.of(name, expert=re.search(experts, name) is not None)
        tensors, value = quantise(tensor.float())
        stored |= {f"{layer}.{suffix}": one.contiguous() for suffix, one in tensors.items()}
        floats[name] = value.contiguous()
        description |= dict.fromkeys((f"{layer}.{one}" for one in tensors), word)
    for name in [name for name in stored if name.endswith("kv_a_layernorm.weight")]:
        attention = name.removesuffix("kv_a_layernorm.weight")
        stored |= {attention + end: one.clone() for end, one in layout.beside.items()}
    config = json.loads((plain / "config.json").read_text())
    added = dict(layout.config)
    for directory, tensors, more in ((quantised, stored, added), (dequantised, floats, {})):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config | more, indent=1) + "\n")
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    if layout.words is not None:
        file = quantised / "quant_model_description.json"
        file.write_text(json.dumps(description, indent=1) + "\n")
