"""What split, norm and rotation of a fused QKV projection refuse."""

from __future__ import annotations

import torch

from ascend_ops_core.errors import InvalidInputError

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int32, torch.int64)


def check_layout(
    qkv: torch.Tensor, q_heads: int, kv_heads: int, head_dim: int, gated: bool
) -> None:
    """Refuse a projection that does not have these heads.

    Raises:
        InvalidInputError: as said.
    """
    if qkv.dtype not in _FLOATS:
        raise InvalidInputError(
            f"qkv of {qkv.dtype}", "float32, bfloat16 or float16", "Convert the projection."
        )
    if q_heads < 0 or kv_heads < 1 or head_dim < 2 or head_dim % 2:
        raise InvalidInputError(
            f"{q_heads} query heads, {kv_heads} key-value heads of {head_dim}",
            "at least 1 key-value head, and an even head size",
            "Shard by whole heads.",
        )
    width = (q_heads * (2 if gated else 1) + 2 * kv_heads) * head_dim
    if qkv.dim() != 2 or qkv.shape[1] != width:
        raise InvalidInputError(
            f"qkv {tuple(qkv.shape)}",
            f"[tokens, {width}] for these heads",
            "Check the head counts.",
        )


def check_table(cos_sin_cache: torch.Tensor, head_dim: int) -> None:
    """Refuse what is no rotary table.

    Raises:
        InvalidInputError: as said.
    """
    fits = cos_sin_cache.dim() == 2 and cos_sin_cache.dtype in _FLOATS
    if not fits or cos_sin_cache.shape[1] % 2 or not 0 < cos_sin_cache.shape[1] <= head_dim:
        raise InvalidInputError(
            f"cos_sin_cache {cos_sin_cache.dtype} {tuple(cos_sin_cache.shape)}",
            f"[positions, R] of floats with an even R of at most the head size {head_dim}",
            "Cosines are the first half of a row, sines the second.",
        )


def check_vectors(size: int, **vectors: torch.Tensor | None) -> None:
    """Refuse norm parameters of another size or dtype; None passes.

    Raises:
        InvalidInputError: as said.
    """
    for name, vector in vectors.items():
        if vector is not None and (tuple(vector.shape) != (size,) or vector.dtype not in _FLOATS):
            raise InvalidInputError(
                f"{name} {vector.dtype} {tuple(vector.shape)}",
                f"floats of shape {(size,)}",
                "Check the norm's parameters.",
            )


def check_positions(positions: torch.Tensor, shape: tuple[int, ...], limit: int) -> None:
    """Refuse positions of another shape and, where reading them costs nothing, outside the table.

    Raises:
        InvalidInputError: as said.
    """
    if positions.dtype not in _INTEGERS or tuple(positions.shape) != shape:
        raise InvalidInputError(
            f"positions {positions.dtype} {tuple(positions.shape)}",
            f"int32 or int64 of shape {shape}",
            "One position for each token.",
        )
    compiling = torch.compiler.is_compiling()
    if positions.device.type == "cpu" and not compiling and positions.numel():
        low, high = int(positions.min()), int(positions.max())
        if low < 0 or high >= limit:
            raise InvalidInputError(
                f"position {low if low < 0 else high}",
                f"the rotary table has positions 0 to {limit - 1}",
                "Extend the table, or limit the length of a sequence.",
            )
