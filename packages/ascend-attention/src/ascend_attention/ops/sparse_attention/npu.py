"""Limits of the sparse attention on NPUs.

torch_npu's ``npu_sparse_flash_attention`` attends to selected rows of one paged cache that is
split into a latent and a rotary part of fixed widths; two caches with one softmax and DeepSeek-V4's
rows of 512 have no public operator. Not run on hardware.
"""

from __future__ import annotations

import torch
from ascend_ops_core.checks import FLOATS
from ascend_ops_core.devices import DeviceFacts
from ascend_ops_core.ops.quantization.formats import exists_on
from ascend_ops_core.support import Support, first_refusal

_WIDEST = 512
# Window and compressed entries; every model has at most these two.
_MOST_SOURCES = 2


def supports_sparse_attention_triton(
    facts: DeviceFacts,
    query: torch.Tensor,
    caches: list[torch.Tensor],
    blocks: list[torch.Tensor],
    offsets: list[torch.Tensor],
    valid: list[torch.Tensor | None],
    sinks: torch.Tensor,
    scale: float,
    rotary: int | None = None,
) -> Support:
    """One or two caches, exact in the query's dtype; at most 512 values without gaps."""
    width = query.shape[2]
    dtypes = (query.dtype,) if query.dtype != torch.float32 else FLOATS
    if rotary is not None:
        dtypes = (torch.uint8,)
    used = sum(block.shape[1] > 0 for block in blocks)
    return first_refusal(
        *([] if rotary is None else [exists_on(facts, torch.float8_e4m3fn)]),
        (
            rotary is None or query.dtype != torch.float16,
            "packed rows with a query of torch.float16, which does not hold their values",
        ),
        (used <= _MOST_SOURCES, f"{used} sources, the kernel takes {_MOST_SOURCES}"),
        (
            query.dtype in FLOATS,
            f"query of {query.dtype}, the kernel takes float32, bfloat16, float16",
        ),
        (
            all(cache.dtype in dtypes for cache in caches),
            f"caches of {sorted({str(cache.dtype) for cache in caches})} with a query of "
            f"{query.dtype}, the kernel takes {', '.join(map(str, dtypes))}",
        ),
        (
            all(cache.stride(2) == 1 for cache in caches),
            "a cache with gaps inside a row, the kernel reads stride 1",
        ),
        (
            width <= _WIDEST,
            f"rows of {width} values, the accumulator of the matrix unit is cut for 512",
        ),
        (sinks.dtype == torch.float32, f"sinks of {sinks.dtype}, the kernel takes float32"),
        (sinks.is_contiguous(), "sinks with gaps, the kernel reads stride 1"),
    )
