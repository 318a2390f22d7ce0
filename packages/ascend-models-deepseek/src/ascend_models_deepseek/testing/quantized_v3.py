"""Quantised tiny checkpoints of DeepSeek-V3, V3.2 and GLM-5, in the layouts of published ones.

See :mod:`ascend_fused_moe.testing.quantizers`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from ascend_fused_moe.testing.quantizers import (
    FP8,
    FP8_BLOCKS,
    INT8_CHANNELS,
    Layout,
    blocks,
    compressed,
    int8,
    w4a8_dynamic,
    w8a8_dynamic,
    w8a8_static,
    write_quantised,
)

__all__ = ["LAYOUTS", "quantise_v3_checkpoint"]

_KEPT = r"(embed_tokens|lm_head|shared_head\.head|eh_proj|mlp\.gate|weights_proj|norm)\."
_EXPERTS = r"\.mlp\.experts\.\d+\."
_IGNORED = ["lm_head", "re:.*mlp.gate$", "re:.*weights_proj$", "re:.*eh_proj$"]
_DYNAMIC = ("W8A8_DYNAMIC", "W8A8_DYNAMIC")
_FA_SCALES = {
    f"fa_{part}.{kind}": torch.full((1, 1), value)
    for part in ("q", "k", "v")
    for kind, value in (("scale", 0.05), ("offset", 0.0))
}

_FLOAT_BLOCKS = blocks("weight_scale_inv", powers=False)
_POWER_BLOCKS = blocks("weight_scale_inv", powers=True)
_CACHES = {"fa_quant_type": "FAKQuant", "indexer_quant_type": "INT8_DYNAMIC"}

LAYOUTS: dict[str, Layout] = {
    "fp8": Layout(_FLOAT_BLOCKS, _FLOAT_BLOCKS, {"quantization_config": FP8}),
    "fp8_e8m0": Layout(
        _POWER_BLOCKS, _POWER_BLOCKS, {"quantization_config": FP8 | {"scale_fmt": "ue8m0"}}
    ),
    "w8a8": Layout(w8a8_static, w8a8_dynamic, words=("W8A8", "W8A8_DYNAMIC")),
    "w8a8_dynamic": Layout(w8a8_dynamic, w8a8_dynamic, words=_DYNAMIC),
    "w8a8_everywhere": Layout(w8a8_dynamic, w8a8_dynamic, words=_DYNAMIC, kept=r"norm\."),
    "w4a8": Layout(w8a8_dynamic, w4a8_dynamic, words=("W8A8_DYNAMIC", "W4A8_DYNAMIC")),
    "c8": Layout(w8a8_dynamic, w8a8_dynamic, words=_DYNAMIC, described=_CACHES, beside=_FA_SCALES),
    "compressed_int8": Layout(
        int8, int8, {"quantization_config": compressed(_IGNORED, {"Linear": INT8_CHANNELS})}
    ),
    "compressed_fp8": Layout(
        blocks("weight_scale", powers=False),
        blocks("weight_scale", powers=False),
        {"quantization_config": compressed(_IGNORED, {"Linear": FP8_BLOCKS})},
    ),
    "fp8_mixed": Layout(
        _FLOAT_BLOCKS,
        _FLOAT_BLOCKS,
        {"quantization_config": FP8 | {"scale_fmt": "ue8m0"}},
        apart=((r"\.layers\.[13]\.", _POWER_BLOCKS, ""),),
    ),
    "modelslim_mixed": Layout(
        w8a8_static,
        w4a8_dynamic,
        words=("W8A8", "W4A8_DYNAMIC"),
        described=_CACHES,
        beside=_FA_SCALES,
        apart=((r"\.layers\.[13]\.", w8a8_dynamic, "W8A8_DYNAMIC"),),
    ),
    "compressed_mixed": Layout(
        blocks("weight_scale", powers=False),
        int8,
        {
            "quantization_config": compressed(
                _IGNORED, {r"re:.*\.experts\.": INT8_CHANNELS, "Linear": FP8_BLOCKS}
            )
        },
    ),
}
"""By name. "w8a8_everywhere" leaves no matrix as it is: embedding, heads and routers as well. The
mixed ones have all formats of their kind, in turn over layers or for experts alone."""


def quantise_v3_checkpoint(plain: Path, quantised: Path, dequantised: Path, layout: str) -> None:
    """Write a plain checkpoint again, quantised, and as what the quantised one stands for.

    Args:
        plain: directory of a tiny checkpoint of DeepSeek-V3 or its kin.
        quantised: directory to write, in the layout of published checkpoints.
        dequantised: directory to write, in float32.
        layout: a key of :data:`LAYOUTS`.
    """
    write_quantised(plain, quantised, dequantised, LAYOUTS[layout], kept=_KEPT, experts=_EXPERTS)
