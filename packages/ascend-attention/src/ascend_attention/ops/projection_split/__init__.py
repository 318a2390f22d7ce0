"""Takes the packed projections of a Gated DeltaNet layer apart."""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, require_at_least, require_dtype, require_shape
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.projection_split import reference

_cpu = CpuKernels("ascend_attention.ops.projection_split.cpu")

__all__ = ["split_qkvz_ba"]


def split_qkvz_ba(
    qkvz: torch.Tensor,
    ba: torch.Tensor,
    key_heads: int,
    value_heads: int,
    key_width: int,
    value_width: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values in a row, gates apart, from projections that lie by key head.

    For each key head ``qkvz`` holds a query, a key, the values of its ``value_heads / key_heads``
    value heads and as many output gates; ``ba`` holds as many ``b``, then as many ``a``.

    Args:
        qkvz: ``[T, 2 * key_heads * key_width + 2 * value_heads * value_width]`` of a float dtype;
            ``T`` may be 0.
        ba: ``[T, 2 * value_heads]`` of the same dtype.
        key_heads: ``Hk`` of this rank.
        value_heads: ``Hv`` of this rank, a multiple of ``Hk``.
        key_width: ``K``, width of a query and of a key.
        value_width: ``V``.

    Returns:
        All contiguous: ``[T, 2 * Hk * K + Hv * V]``, all queries, then all keys, then all values;
        output gates ``[T, Hv, V]``; ``b`` and ``a``, ``[T, Hv]`` each.

    Raises:
        InvalidInputError: another shape or dtype, heads that do not divide.

    Source: the order of Qwen3-Next's checkpoints (transformers' ``modeling_qwen3_next.py``).
    """
    for name, size in (
        ("key_heads", key_heads),
        ("value_heads", value_heads),
        ("key_width", key_width),
        ("value_width", value_width),
    ):
        require_at_least(name, size, 1)
    if value_heads % key_heads:
        raise InvalidInputError(
            f"value_heads={value_heads} beside key_heads={key_heads}",
            "every key head has the same number of value heads",
            "Check the config and the tensor-parallel size.",
        )
    require_dtype("qkvz", qkvz, FLOATS)
    require_shape("qkvz", qkvz, None, 2 * key_heads * key_width + 2 * value_heads * value_width)
    require_dtype("ba", ba, (qkvz.dtype,))
    require_shape("ba", ba, qkvz.shape[0], 2 * value_heads)
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] = _SPLIT(
        qkvz, ba, key_heads, value_heads, key_width, value_width
    )
    return result


def _split_cpu(
    qkvz: torch.Tensor,
    ba: torch.Tensor,
    key_heads: int,
    value_heads: int,
    key_width: int,
    value_width: int,
) -> tuple[torch.Tensor, ...]:
    kernels = _cpu.usable(qkvz, ba)
    run = reference.split_qkvz_ba
    if kernels is not None and kernels.supports(qkvz, ba):
        run = kernels.split_qkvz_ba
    return run(qkvz, ba, key_heads, value_heads, key_width, value_width)


def _fake_split(
    qkvz: torch.Tensor,
    ba: torch.Tensor,
    key_heads: int,
    value_heads: int,
    key_width: int,
    value_width: int,
) -> tuple[torch.Tensor, ...]:
    tokens = qkvz.shape[0]
    return (
        qkvz.new_empty(tokens, 2 * key_heads * key_width + value_heads * value_width),
        qkvz.new_empty(tokens, value_heads, value_width),
        ba.new_empty(tokens, value_heads),
        ba.new_empty(tokens, value_heads),
    )


_SPLIT = declare(
    __name__,
    "split_qkvz_ba(Tensor qkvz, Tensor ba, int key_heads, int value_heads, int key_width, "
    "int value_width) -> (Tensor, Tensor, Tensor, Tensor)",
    npu=("triton", "torch"),
    fake=_fake_split,
    cpu=_split_cpu,
)
