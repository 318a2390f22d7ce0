"""What MLA caches of a token: its latent, normed, and the key that all heads share, rotated."""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS, INDICES, require_dtype, require_shape
from ascend_ops_core.cpu_kernels import CpuKernels
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare
from ascend_ops_core.selection import Choice

from ascend_attention.ops.mla_cache import reference
from ascend_attention.ops.paged_rows import RowIndex

_cpu = CpuKernels("ascend_attention.ops.mla_cache.cpu")

__all__ = ["kv_rmsnorm_rope_cache", "write_choice"]


def kv_rmsnorm_rope_cache(
    kv: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    index: RowIndex,
    *,
    interleaved: bool = True,
    split: bool = False,
) -> None:
    """Norm the latents, rotate the shared keys, and write both.

    Args:
        kv: ``[T, L + R]``, what ``kv_a_proj_with_mqa`` gives; float32, bfloat16 or float16; ``T``
            may be 0, and rows may have gaps between them.
        weight: ``[L]`` float32 of the latent's RMS norm.
        eps: added to the mean square.
        cos: ``[T, R / 2]`` float32.
        sin: the same shape and dtype.
        latents: ``[B, P, L]`` paged latents, any strides; written, rounding to its dtype.
        ropes: ``[B, P, R]`` paged rotated keys of the same dtype; written.
        index: block and offset of every token, each ``[T]`` int32 or int64, rows that differ from
            each other; negative for padding, which writes nothing.
        interleaved: pairs are channels ``(0, 1), (2, 3), ...`` rather than ``(i, i + R / 2)``.
        split: interleaved pairs are written as ``(i, i + R / 2)``, which is what torch_npu's
            operators write; queries have to be in that order too then. Of pairs that lie so
            already nothing changes.

    Raises:
        InvalidInputError: shapes or dtypes that do not fit each other; nothing was written then.
        IndexError: on a CPU, a row outside the caches; nothing was written then.
    """
    require_dtype("kv", kv, FLOATS)
    require_shape("kv", kv, None, None)
    tokens, rank = kv.shape[0], weight.shape[0]
    rotary = kv.shape[1] - rank
    if rotary < 2 or rotary % 2:
        raise InvalidInputError(
            f"kv of {kv.shape[1]} values with a norm of {rank}",
            "an even number of rotated values follows the latent",
            "Check kv_lora_rank and qk_rope_head_dim.",
        )
    for name, table in (("cos", cos), ("sin", sin)):
        require_shape(name, table, tokens, rotary // 2)
        require_dtype(name, table, (torch.float32,))
    require_dtype("weight", weight, (torch.float32,))
    require_dtype("latents", latents, FLOATS)
    require_shape("latents", latents, None, None, rank)
    require_dtype("ropes", ropes, (latents.dtype,))
    require_shape("ropes", ropes, *latents.shape[:2], rotary)
    for name, part in (("block", index.block), ("offset", index.offset)):
        require_shape(name, part, tokens)
        require_dtype(name, part, INDICES)
    _KV_RMSNORM_ROPE_CACHE(
        kv, weight, eps, cos, sin, latents, ropes, index.block, index.offset, interleaved, split
    )


def _kv_rmsnorm_rope_cache_cpu(
    kv: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    block: torch.Tensor,
    offset: torch.Tensor,
    interleaved: bool,
    split: bool,
) -> None:
    given = kv, weight, eps, cos, sin, latents, ropes, block, offset, interleaved, split
    kernels = _cpu.usable(kv, weight, cos, sin, latents, ropes)
    if kernels is not None and kernels.supports(*given):
        kernels.kv_rmsnorm_rope_cache(*given)
    else:
        reference.kv_rmsnorm_rope_cache(*given)


_KV_RMSNORM_ROPE_CACHE = declare(
    __name__,
    "kv_rmsnorm_rope_cache(Tensor kv, Tensor weight, float eps, Tensor cos, Tensor sin, "
    "Tensor(a!) latents, Tensor(b!) ropes, Tensor block, Tensor offset, bool interleaved, "
    "bool split) -> ()",
    npu=("torch_npu", "triton", "torch"),
    fake=lambda *args: None,
    cpu=_kv_rmsnorm_rope_cache_cpu,
)


def write_choice(
    facts: DeviceFacts,
    dtype: torch.dtype,
    rank: int,
    rotary: int,
    rows: int,
    *,
    interleaved: bool,
) -> Choice:
    """What writes a layer's rows where they may be written half-split, for layers that are built.

    Args:
        facts: the device family.
        dtype: of the rows and the caches.
        rank: width of a latent.
        rotary: width of a rotated key.
        rows: of a block.
        interleaved: see :func:`kv_rmsnorm_rope_cache`.
    """

    def like(*shape: int, of: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=of, device="meta")

    angles, place = like(1, rotary // 2, of=torch.float32), like(1, of=torch.int64)
    return _KV_RMSNORM_ROPE_CACHE.choose(
        facts, like(1, rank + rotary), like(rank, of=torch.float32), 1e-6, angles, angles,
        like(1, rows, rank), like(1, rows, rotary), place, place, interleaved, True,
    )  # fmt: skip
