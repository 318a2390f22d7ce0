"""Quantised tiny DeepSeek-V4 checkpoints in the real layouts, and what they stand for.

Each writer takes a plain checkpoint and writes two: the quantised one, and a float32 one with the
dequantised weights, which transformers reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
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

__all__ = ["LAYOUTS", "quantise_checkpoint"]

Stored = dict[str, torch.Tensor]
Quantise = Callable[[torch.Tensor], tuple[Stored, torch.Tensor]]

_KEPT = re.compile(
    r"^(mtp\.\d+\.)?(embed|head|emb\.tok_emb)\.|\.gate\.|compressor\.|weights_proj|norm\."
)
_EXPERT = re.compile(r"\.ffn\.experts\.\d+\.")
_INT4_LARGEST = 7
_INPUT_SCALE = 0.04


def _blocks(suffix: str, powers: bool) -> Quantise:
    def quantise(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
        dtype = torch.uint8 if powers else torch.float32
        q, scale = block_quantize(weight, rows=128, scale_dtype=dtype)
        plain = block_dequantize(q, scale, torch.float32, rows=128)
        scale = scale.view(torch.float8_e8m0fnu) if powers else scale
        return {"weight": q, suffix: scale}, plain

    return quantise


def _mxfp4(weight_suffix: str, scale_suffix: str) -> Quantise:
    def quantise(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
        q, scale = mxfp4_quantize(weight)
        plain = mxfp4_dequantize(q, scale, torch.float32)
        return {
            weight_suffix: q.view(torch.int8),
            scale_suffix: scale.view(torch.float8_e8m0fnu),
        }, plain

    return quantise


def _mxfp8(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
    q, scale = mxfp8_quantize(weight)
    return {"weight": q, "scale": scale}, mxfp8_dequantize(q, scale, torch.float32)


def _w8a8_dynamic(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
    q, scale = dynamic_quantize(weight)
    scale = scale[:, None].contiguous()
    stored = {"weight": q, "weight_scale": scale, "weight_offset": torch.zeros_like(scale)}
    return stored, q.float() * scale


def _int8(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
    stored, plain = _w8a8_dynamic(weight)
    del stored["weight_offset"]
    return stored, plain


def _w8a8_static(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
    q, scale = dynamic_quantize(weight)
    return {
        "weight": q,
        "deq_scale": scale * _INPUT_SCALE,
        "input_scale": torch.tensor([_INPUT_SCALE]),
        "input_offset": torch.zeros(1),
        "quant_bias": torch.zeros(len(scale), dtype=torch.int32),
    }, q.float() * scale[:, None]


def _w4a8_dynamic(weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / _INT4_LARGEST
    codes = (weight / scale).round()
    nibbles = (codes.to(torch.int8) & 0xF).view(torch.uint8)
    return {
        "weight": (nibbles[0::2] | nibbles[1::2] << 4).view(torch.int8),
        "weight_scale": scale,
        "weight_offset": torch.zeros_like(scale),
        "scale_bias": 8 * (codes * scale).sum(1, keepdim=True),
    }, codes * scale


_FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
_CHANNELS = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "ignore": ["re:.*ffn.gate$", "head", "embed", "re:.*compressor.*", "re:.*weights_proj$"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": True},
            "input_activations": {"type": "int", "num_bits": 8, "dynamic": True},
        }
    },
}

LAYOUTS: dict[str, tuple[Quantise, Quantise, dict[str, Any], tuple[str, str] | None]] = {
    "flash": (
        _blocks("scale", powers=True),
        _mxfp4("weight", "scale"),
        {"quantization_config": _FP8 | {"scale_fmt": "ue8m0"}, "expert_dtype": "fp4"},
        None,
    ),
    "flash_base": (
        _blocks("scale", powers=False),
        _blocks("scale", powers=False),
        {"quantization_config": _FP8, "expert_dtype": "fp8"},
        None,
    ),
    "mxfp8": (_mxfp8, _mxfp8, {"quantization_config": {"quant_method": "mxfp8"}}, None),
    "w8a8": (_w8a8_static, _w8a8_dynamic, {}, ("W8A8", "W8A8_DYNAMIC")),
    "w8a8_dynamic": (_w8a8_dynamic, _w8a8_dynamic, {}, ("W8A8_DYNAMIC", "W8A8_DYNAMIC")),
    "w4a8": (_w8a8_dynamic, _w4a8_dynamic, {}, ("W8A8_DYNAMIC", "W4A8_DYNAMIC")),
    "compressed_tensors": (_int8, _int8, {"quantization_config": _CHANNELS}, None),
}
"""By name: how linear layers are stored, how experts, what ``config.json`` adds, and ModelSlim's
words for both where it describes the checkpoint."""


def quantise_checkpoint(plain: Path, quantised: Path, dequantised: Path, layout: str) -> None:
    """Write a plain checkpoint again, quantised, and as what the quantised one stands for.

    Args:
        plain: a directory written by :func:`~ascend_models_deepseek.testing.write_checkpoint`.
        quantised: directory to write, in the layout of published checkpoints.
        dequantised: directory to write, in float32.
        layout: a key of :data:`LAYOUTS`.
    """
    linear, expert, added, words = LAYOUTS[layout]
    stored: Stored = {}
    floats: Stored = {}
    description: dict[str, Any] = {"model_quant_type": "mixed"}
    for name, tensor in load_file(plain / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if layer == name or tensor.dim() != 2 or _KEPT.search(name):
            stored[name] = floats[name] = tensor
            description[name] = "FLOAT"
            continue
        is_expert = _EXPERT.search(name) is not None
        tensors, value = (expert if is_expert else linear)(tensor.float())
        stored |= {f"{layer}.{suffix}": one.contiguous() for suffix, one in tensors.items()}
        floats[name] = value.contiguous()
        if words is not None:
            description |= dict.fromkeys((f"{layer}.{one}" for one in tensors), words[is_expert])
    config = json.loads((plain / "config.json").read_text())
    for directory, tensors, more in ((quantised, stored, added), (dequantised, floats, {})):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config | more, indent=1) + "\n")
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    if words is not None:
        file = quantised / "quant_model_description.json"
        file.write_text(json.dumps(description, indent=1) + "\n")
