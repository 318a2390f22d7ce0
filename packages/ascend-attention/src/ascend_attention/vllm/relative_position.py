"""vLLM's attention with decomposed relative positions, of SAM's encoder, by our operator."""

from __future__ import annotations

import torch
from vllm.model_executor.models.deepencoder import RelPosAttention

from ascend_attention.layers.relative_position import decomposed_relative_bias
from ascend_attention.ops.relative_attention import relative_attention


class AscendRelPosAttention(RelPosAttention):
    """Attention among the patches of a grid; arguments as vLLM's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[B, R, C, dim]`` to the same."""
        batch, rows, columns, _ = x.shape
        qkv = self.qkv(x).view(batch, rows * columns, 3, self.num_heads, -1)
        query, key, value = qkv.unbind(2)
        if self.use_rel_pos:
            bias = decomposed_relative_bias(query, self.rel_pos_h, self.rel_pos_w, (rows, columns))
        else:
            bias = query.new_zeros((1, self.num_heads, rows * columns, rows * columns))
        attended = relative_attention(query, key, value, bias, self.scale)
        result: torch.Tensor = self.proj(attended.view(batch, rows, columns, -1))
        return result
