"""Quantised tiny MiniMax-M3 checkpoints, in the layouts of published ones.

See :mod:`ascend_fused_moe.testing.quantizers`.
"""

from __future__ import annotations

from pathlib import Path

from ascend_fused_moe.testing.quantizers import Layout, mxfp8, w8a8_dynamic, write_quantised

__all__ = ["LAYOUTS", "quantise_m3_checkpoint"]

_VISION = ("vision_tower", "multi_modal_projector", "patch_merge_mlp")
_KEPT = rf"(embed_tokens|lm_head|eh_proj|block_sparse_moe\.gate|norm)\.|^({'|'.join(_VISION)})\."
_EXPERTS = r"\.block_sparse_moe\.experts\.\d+\."
_MXFP8 = mxfp8("weight_scale_inv")


def _config(*more: str) -> dict[str, object]:
    return {"quantization_config": {"quant_method": "mxfp8", "ignored_layers": [*_VISION, *more]}}


LAYOUTS: dict[str, Layout] = {
    "mxfp8": Layout(_MXFP8, _MXFP8, _config("lm_head")),
    "mxfp8_index_kept": Layout(
        _MXFP8,
        _MXFP8,
        _config("re:.*layers\\.[14]\\.self_attn\\.index_"),
        kept=rf"{_KEPT}|\.layers\.[14]\.self_attn\.index_",
    ),
    "w8a8_dynamic": Layout(w8a8_dynamic, w8a8_dynamic, words=("W8A8_DYNAMIC", "W8A8_DYNAMIC")),
}
"""By name. The second one leaves the index projections of two layers in the model's dtype."""


def quantise_m3_checkpoint(plain: Path, quantised: Path, dequantised: Path, layout: str) -> None:
    """Write a plain checkpoint again, quantised, and as what the quantised one stands for.

    Args:
        plain: directory of a tiny checkpoint of MiniMax-M3.
        quantised: directory to write, in the layout of published checkpoints.
        dequantised: directory to write, in float32.
        layout: a key of :data:`LAYOUTS`.
    """
    write_quantised(plain, quantised, dequantised, LAYOUTS[layout], kept=_KEPT, experts=_EXPERTS)
