"""Several copies of bytes in one launch."""

from __future__ import annotations

import torch

from ascend_ops_core.checks import require_dtype, require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.registry import declare

__all__ = ["batch_memcpy"]


def batch_memcpy(
    destination: torch.Tensor,
    source: torch.Tensor,
    destination_offsets: torch.Tensor,
    source_offsets: torch.Tensor,
    sizes: torch.Tensor,
) -> None:
    """Copy ranges of bytes from one buffer to another (vLLM: ``v1/worker/mamba_utils.py``).

    The ranges lie on the device, so that nothing waits for the host. They are not checked there:
    each must lie within its buffer, and what is written may overlap nothing else that is read or
    written.

    Args:
        destination: ``[D]`` uint8, contiguous; written. Any tensor is one: see
            ``tensor.view(torch.uint8)``.
        source: ``[S]`` uint8, contiguous; may share memory with ``destination``.
        destination_offsets: ``[N]`` int64, bytes; ``N`` may be 0.
        source_offsets: ``[N]`` int64, bytes.
        sizes: ``[N]`` int64, bytes; 0 copies nothing.

    Raises:
        InvalidInputError: another shape or dtype, or a buffer with gaps; nothing was written
            then.
    """
    for name, buffer in (("destination", destination), ("source", source)):
        require_shape(name, buffer, None)
        require_dtype(name, buffer, (torch.uint8,))
        if not buffer.is_contiguous():
            raise InvalidInputError(
                f"{name} with stride {buffer.stride(0)}", "it is contiguous", "Pass bytes in a row."
            )
    copies = sizes.shape[0] if sizes.dim() else None
    for name, numbers in (
        ("destination_offsets", destination_offsets),
        ("source_offsets", source_offsets),
        ("sizes", sizes),
    ):
        require_shape(name, numbers, copies)
        require_dtype(name, numbers, (torch.int64,))
    _BATCH_MEMCPY(destination, source, destination_offsets, source_offsets, sizes)


_BATCH_MEMCPY = declare(
    __name__,
    "batch_memcpy(Tensor(a!) destination, Tensor source, Tensor destination_offsets, "
    "Tensor source_offsets, Tensor sizes) -> ()",
    npu=("triton", "torch"),
    fake=lambda *args: None,
)
