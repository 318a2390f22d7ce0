"""Bytes of one tensor on a card: how the model holds it, and how matrices are stored."""

from __future__ import annotations

import re
from enum import StrEnum

import torch
from ascend_ops_core.checkpoint.table import TensorRule
from ascend_ops_core.quantized_weights import QuantizationResolver

__all__ = [
    "VISION",
    "TensorClass",
    "WeightFormat",
    "stored_bytes",
    "tensor_bytes",
    "tensor_class",
]

_KEPT = (
    "embed.",
    "embed_tokens.",
    "head.",
    "compressor.",
    "weights_proj.",
    "ffn.gate.",
    "tok_emb.",
    "eh_proj.",
    "markov_head.",
    # Quantised checkpoints have both in eight bits, and attention holds them in the model's dtype.
    "kv_b_proj.",
    "indexer.wk.",
)
# Kimi's mixing of blocks and its convolutions compute in float32.
_FLOAT32 = re.compile(r"(_res_proj|_conv1d)\.weight$")
_CONFIDENCE = ".confidence_head.proj.weight"
VISION = re.compile(r"^(vision_tower|multi_modal_projector|patch_merge_mlp|mm_projector)\.")


class TensorClass(StrEnum):
    """How a tensor is held."""

    IDS = "ids"
    CONTROL = "control"
    PLAIN = "plain"
    LINEAR = "linear"
    EXPERT = "expert"


class WeightFormat(StrEnum):
    """How matrices are stored on the card.

    ``model`` is the model's dtype, ``stored`` what a checkpoint's description says of each layer;
    the others are formats that a checkpoint may have.
    """

    MODEL = "model"
    FP8 = "fp8"
    FP8_MXFP4 = "fp8-mxfp4"
    W8A8 = "w8a8"
    STORED = "stored"


def tensor_class(name: str, rule: TensorRule) -> TensorClass:
    """How the model holds a tensor, told from its original name."""
    if rule.below is not None:
        return TensorClass.IDS
    if VISION.search(name):
        return TensorClass.CONTROL if "norm" in name else TensorClass.PLAIN
    leaf = name.removeprefix("mtp.").rsplit(".", 1)[-1]
    if len(rule.shape) == 1 or leaf.startswith("hc_") or leaf == "ape":
        return TensorClass.CONTROL
    if name.endswith((".mlp.gate.weight", ".block_sparse_moe.gate.weight", _CONFIDENCE)):
        return TensorClass.CONTROL
    if _FLOAT32.search(name):
        return TensorClass.CONTROL
    if ".experts." in name:
        return TensorClass.EXPERT
    return TensorClass.PLAIN if any(part in name for part in _KEPT) else TensorClass.LINEAR


def tensor_bytes(
    kind: TensorClass, shape: tuple[int, ...], dtype: torch.dtype, weight_format: WeightFormat
) -> int:
    """Bytes of a tensor with its scales.

    Args:
        kind: how it is held.
        shape: its shape on this card, rows first.
        dtype: the model's dtype.
        weight_format: how matrices are stored. ``fp8``: one float32 scale for 128 x 128 weights;
            ``fp8-mxfp4``: the same with one-byte scales, experts in 4 bits with one byte for 32
            weights; ``w8a8``: 8 bits with one float32 scale and one offset for an output channel.
    """
    count = torch.Size(shape).numel()
    if kind is TensorClass.IDS or kind is TensorClass.CONTROL:
        return 4 * count
    if kind is TensorClass.PLAIN or weight_format is WeightFormat.MODEL:
        return dtype.itemsize * count
    rows, columns = torch.Size(shape[:-1]).numel(), shape[-1]
    if weight_format is WeightFormat.W8A8:
        return count + 8 * rows
    if weight_format is WeightFormat.FP8_MXFP4 and kind is TensorClass.EXPERT:
        return _ceil(count, 2) + rows * _ceil(columns, 32)
    scale = 4 if weight_format is WeightFormat.FP8 else 1
    return count + scale * _ceil(rows, 128) * _ceil(columns, 128)


def stored_bytes(
    name: str,
    rule: TensorRule,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    resolver: QuantizationResolver,
) -> int:
    """Bytes of a tensor with its scales, held as its checkpoint stores it.

    Args:
        name: its name in the checkpoint.
        rule: its line in the table of tensors.
        shape: its shape on this card, rows first.
        dtype: the model's dtype.
        resolver: of the checkpoint.
    """
    kind = tensor_class(name, rule)
    matrix = name.endswith(".weight") and len(rule.shape) == 2
    scheme = resolver.held(name.removesuffix(".weight")) if matrix else None
    if scheme is None:
        return tensor_bytes(kind, shape, dtype, WeightFormat.MODEL)
    return scheme.nbytes(torch.Size(shape[:-1]).numel(), shape[-1])


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)
