"""Quantised tiny DeepSeek-V4 checkpoints; see :mod:`ascend_fused_moe.testing.quantizers`."""

from __future__ import annotations

from pathlib import Path

from ascend_fused_moe.testing.quantizers import (
    FP8,
    INT8_CHANNELS,
    Layout,
    blocks,
    compressed,
    int8,
    mxfp4,
    mxfp8,
    w4a8_dynamic,
    w8a8_dynamic,
    w8a8_static,
    write_quantised,
)

__all__ = ["LAYOUTS", "quantise_checkpoint"]

_KEPT = (
    r"^(mtp\.\d+\.)?(embed|head|emb\.tok_emb)\.|\.gate\.|compressor\.|weights_proj|norm\."
    r"|\.(markov|confidence)_head\."
)
_EXPERTS = r"\.ffn\.experts\.\d+\."
_IGNORED = ["re:.*ffn.gate$", "head", "embed", "re:.*compressor.*", "re:.*weights_proj$"]

LAYOUTS: dict[str, Layout] = {
    "flash": Layout(
        blocks("scale", powers=True),
        mxfp4("weight", "scale"),
        {"quantization_config": FP8 | {"scale_fmt": "ue8m0"}, "expert_dtype": "fp4"},
    ),
    "flash_base": Layout(
        blocks("scale", powers=False),
        blocks("scale", powers=False),
        {"quantization_config": FP8, "expert_dtype": "fp8"},
    ),
    "mxfp8": Layout(
        mxfp8("scale"), mxfp8("scale"), {"quantization_config": {"quant_method": "mxfp8"}}
    ),
    "w8a8": Layout(w8a8_static, w8a8_dynamic, words=("W8A8", "W8A8_DYNAMIC")),
    "w8a8_dynamic": Layout(w8a8_dynamic, w8a8_dynamic, words=("W8A8_DYNAMIC", "W8A8_DYNAMIC")),
    "w4a8": Layout(w8a8_dynamic, w4a8_dynamic, words=("W8A8_DYNAMIC", "W4A8_DYNAMIC")),
    "compressed_tensors": Layout(
        int8, int8, {"quantization_config": compressed(_IGNORED, {"Linear": INT8_CHANNELS})}
    ),
}
"""By name."""


def quantise_checkpoint(plain: Path, quantised: Path, dequantised: Path, layout: str) -> None:
    """Write a plain checkpoint again, quantised, and as what the quantised one stands for.

    Args:
        plain: a directory written by :func:`~ascend_models_deepseek.testing.write_checkpoint`.
        quantised: directory to write, in the layout of published checkpoints.
        dequantised: directory to write, in float32.
        layout: a key of :data:`LAYOUTS`.
    """
    write_quantised(plain, quantised, dequantised, LAYOUTS[layout], kept=_KEPT, experts=_EXPERTS)
