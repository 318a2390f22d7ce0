"""vLLM's attention of multimodal encoders by this package's operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.model_executor.layers.attention.mm_encoder_attention import MMEncoderAttention

from ascend_attention.ops.encoder_attention import encoder_attention


class AscendMMEncoderAttention(MMEncoderAttention):
    """Attention within the items of a batch, such as images; arguments as vLLM's.

    Where the model tells the items' lengths on the host (eager), torch_npu's operator can serve;
    from ``cu_seqlens`` alone (a captured graph) the kernel finds them on the device.
    """

    @classmethod
    def maybe_compute_seq_lens(
        cls, attn_backend: Any, cu_seqlens: np.ndarray, device: torch.device
    ) -> torch.Tensor:
        """``[S]`` int64 lengths of the items, on the host."""
        return torch.from_numpy(np.diff(cu_seqlens)).long()

    def forward_oot(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seqlens: torch.Tensor | None = None,
        max_seqlen: torch.Tensor | None = None,
        sequence_lengths: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend.

        Args:
            query: ``[B, S, H * D]`` or ``[B, S, H, D]``.
            key: the same with its heads.
            value: the same.
            cu_seqlens: ``[items + 1]`` on the device, where items of the flat batch begin and end;
                every row of the batch is one without it.
            max_seqlen: not needed.
            sequence_lengths: ``[items]`` on the host, or None. A graph would keep those of its
                capture, so inside one it is not read.
        """
        batch, tokens = query.shape[:2]
        q, k, v = (one.reshape(batch * tokens, -1, self.head_size) for one in (query, key, value))
        ends: list[int] = []
        if cu_seqlens is None:
            ends = [tokens * (row + 1) for row in range(batch)]
            cu_seqlens = torch.arange(batch + 1, device=query.device) * tokens
        elif sequence_lengths is not None and not _capturing(query.device):
            ends = sequence_lengths.cumsum(0).tolist()
        return encoder_attention(q, k, v, cu_seqlens, self.scale, ends=ends).view(query.shape)


def _capturing(device: torch.device) -> bool:
    if device.type == "cpu":
        return False
    module: Any = getattr(torch, device.type)
    return bool(module.is_current_stream_capturing())
