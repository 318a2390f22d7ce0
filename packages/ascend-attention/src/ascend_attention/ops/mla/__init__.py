"""What stands around DeepSeek-V4's attention: query and key-value prologue, output epilogue.

Both are chains of small products, norms and rotations that a decode step runs in every layer. On
an NPU they are chains of the operators of ascend-ops-core, each of which chooses its own
implementation. Shapes: T tokens, H hidden size, L query rank, h heads, D head width, G output
groups.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import require_shape
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

from ascend_attention.ops.mla import reference
from ascend_attention.ops.mla.prologue import Prologue

_cpu = CpuKernels("ascend_attention.ops.mla.cpu")

__all__ = ["Prologue", "mla_epilogue", "mla_prologue"]


def mla_prologue(
    hidden: torch.Tensor,
    wqa_wkv: torch.Tensor,
    wq_b: torch.Tensor,
    q_norm: torch.Tensor,
    kv_norm: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> Prologue:
    """Query latent, queries, and key-value rows.

    Args:
        hidden: ``[T, H]``, float32, bfloat16 or float16; ``T`` may be 0. All weights but the
            norms have its dtype.
        wqa_wkv: ``[L + D, H]``, rows of the query latent before those of the key-value row.
        wq_b: ``[h * D, L]``.
        q_norm: ``[L]`` float32, norm of the latent.
        kv_norm: ``[D]`` float32, norm of the key-value row; query heads are normed without weight.
        eps: epsilon of all norms.
        cos: ``[T, R / 2]`` float32; queries and rows are rotated in their last ``R`` channels.
        sin: the same shape.

    Raises:
        InvalidInputError: shapes that do not fit each other.
    """
    rank, width = q_norm.shape[0], kv_norm.shape[0]
    # The usual case in one condition, since a decode step asks for every layer.
    if not (
        hidden.dim() == wq_b.dim() == cos.dim() == 2
        and wqa_wkv.shape == (rank + width, hidden.shape[1])
        and wq_b.shape[1] == rank
        and wq_b.shape[0] % width == 0
        and cos.shape == sin.shape
        and cos.shape[0] == hidden.shape[0]
        and 2 * cos.shape[1] <= width
    ):
        _refuse_prologue(hidden, wqa_wkv, wq_b, rank, width, cos, sin)
    return Prologue(*_MLA_PROLOGUE(hidden, wqa_wkv, wq_b, q_norm, kv_norm, eps, cos, sin))


def mla_epilogue(
    attended: torch.Tensor,
    wo_a: torch.Tensor,
    wo_b: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    """Inverse rotation, then the grouped low-rank output projection.

    Rows are key and value at once, so what attention returns still carries the keys' rotation.

    Args:
        attended: ``[T, h, D]``, float32, bfloat16 or float16; ``T`` may be 0. The weights have
            its dtype.
        wo_a: ``[G, N, h / G * D]``.
        wo_b: ``[H, G * N]``.
        cos: ``[T, R / 2]`` float32, as in the prologue.
        sin: the same shape.

    Returns:
        ``[T, H]``.

    Raises:
        InvalidInputError: shapes that do not fit each other.
    """
    if not (
        attended.dim() == wo_a.dim() == 3
        and wo_b.dim() == cos.dim() == 2
        and wo_b.shape[1] == wo_a.shape[0] * wo_a.shape[1]
        and wo_a.shape[0] * wo_a.shape[2] == attended.shape[1] * attended.shape[2]
        and cos.shape == sin.shape
        and cos.shape[0] == attended.shape[0]
        and 2 * cos.shape[1] <= attended.shape[2]
    ):
        _refuse_epilogue(attended, wo_a, wo_b, cos, sin)
    result: torch.Tensor = _MLA_EPILOGUE(attended, wo_a, wo_b, cos, sin)
    return result


def _refuse_prologue(
    hidden: torch.Tensor,
    wqa_wkv: torch.Tensor,
    wq_b: torch.Tensor,
    rank: int,
    width: int,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> None:
    require_shape("hidden", hidden, None, None)
    require_shape("wqa_wkv", wqa_wkv, rank + width, hidden.shape[1])
    require_shape("wq_b", wq_b, None, rank)
    _require_rotation(hidden.shape[0], width, cos, sin)
    raise InvalidInputError(
        f"wq_b of {wq_b.shape[0]} rows", f"heads have {width} rows each", "Check the weights."
    )


def _refuse_epilogue(
    attended: torch.Tensor,
    wo_a: torch.Tensor,
    wo_b: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> None:
    require_shape("attended", attended, None, None, None)
    tokens, heads, width = attended.shape
    require_shape("wo_a", wo_a, None, None, None)
    groups, rank, inner = wo_a.shape
    require_shape("wo_b", wo_b, None, groups * rank)
    _require_rotation(tokens, width, cos, sin)
    raise InvalidInputError(
        f"wo_a of {groups} groups of {inner} values",
        f"{heads} heads of {width} values are divided among them",
        "Check the weights.",
    )


def _require_rotation(tokens: int, width: int, cos: torch.Tensor, sin: torch.Tensor) -> None:
    require_shape("cos", cos, tokens, None)
    require_shape("sin", sin, *cos.shape)
    if 2 * cos.shape[1] > width:
        raise InvalidInputError(
            f"a rotation of {2 * cos.shape[1]} channels", f"heads have {width}", "Check the table."
        )


def _mla_prologue_cpu(
    hidden: torch.Tensor,
    wqa_wkv: torch.Tensor,
    wq_b: torch.Tensor,
    q_norm: torch.Tensor,
    kv_norm: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    kernels = _cpu.usable(hidden, wqa_wkv, wq_b, q_norm, kv_norm, cos, sin)
    if kernels is not None and kernels.supports(
        hidden, (hidden, wqa_wkv, wq_b), (q_norm, kv_norm, cos, sin)
    ):
        return kernels.mla_prologue(hidden, wqa_wkv, wq_b, q_norm, kv_norm, eps, cos, sin)
    return reference.mla_prologue(hidden, wqa_wkv, wq_b, q_norm, kv_norm, eps, cos, sin)


def _mla_epilogue_cpu(
    attended: torch.Tensor,
    wo_a: torch.Tensor,
    wo_b: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    kernels = _cpu.usable(attended, wo_a, wo_b, cos, sin)
    if kernels is not None and kernels.supports(attended, (attended, wo_a, wo_b), (cos, sin)):
        return kernels.mla_epilogue(attended, wo_a, wo_b, cos, sin)
    return reference.mla_epilogue(attended, wo_a, wo_b, cos, sin)


def _fake_prologue(
    hidden: torch.Tensor,
    wqa_wkv: torch.Tensor,
    wq_b: torch.Tensor,
    q_norm: torch.Tensor,
    kv_norm: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens, width = hidden.shape[0], kv_norm.shape[0]
    return (
        hidden.new_empty((tokens, q_norm.shape[0])),
        hidden.new_empty((tokens, wq_b.shape[0] // width, width)),
        hidden.new_empty((tokens, width)),
    )


_MLA_PROLOGUE = declare(
    __name__,
    "mla_prologue(Tensor hidden, Tensor wqa_wkv, Tensor wq_b, Tensor q_norm, Tensor kv_norm, "
    "float eps, Tensor cos, Tensor sin) -> (Tensor, Tensor, Tensor)",
    # npu_mla_prolog_v3 splits heads and rows into a plain and a rotary part of fixed widths, each
    # with weights of its own, and norms no query heads.
    npu=("torch",),
    fake=_fake_prologue,
    cpu=_mla_prologue_cpu,
)
_MLA_EPILOGUE = declare(
    __name__,
    "mla_epilogue(Tensor attended, Tensor wo_a, Tensor wo_b, Tensor cos, Tensor sin) -> Tensor",
    npu=("torch",),
    fake=lambda attended, wo_a, wo_b, cos, sin: attended.new_empty(
        (attended.shape[0], wo_b.shape[0])
    ),
    cpu=_mla_epilogue_cpu,
)
