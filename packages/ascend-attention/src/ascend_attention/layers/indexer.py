"""DeepSeek-V4's lightning indexer: queries, head weights, and the compressor of its keys."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding
from ascend_ops_core.ops.hadamard import hadamard
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.ops.rotary import apply_rotary
from ascend_ops_core.quantized_weights.weight import QuantizedWeight, project
from torch import nn

from ascend_attention.layers.compressor import Compressor


def spread(rows: torch.Tensor) -> torch.Tensor:
    """Indexer queries or keys ``[..., D]`` before they are quantised to eight bits.

    A Hadamard rotation spreads a large channel over all of them, so that one scale fits a row. Of
    both queries and keys it changes no score, so rows that keep their floats do without.

    Source: ``rotate_activation`` in DeepSeek's inference code, behind the positional rotation.
    """
    return hadamard(rows)


class DeepseekV4Indexer(nn.Module):
    """Scores compressed entries for every query and keeps the best.

    Args:
        hidden_size: ``H``.
        q_lora_rank: width of the query latent.
        num_heads: indexer heads.
        head_dim: width of an indexer head.
        top_k: entries that a query keeps.
        ratio: tokens per entry.
        norm_eps: epsilon of the keys' RMS norm.
        rotary: table of the compressed branch.
        dtype: dtype of the projections.
        wq_b: the queries' projection where a checkpoint has it quantised, else None.

    Attributes:
        query_scale: factor on the heads' weights.
        wq_b: ``[num_heads * head_dim, q_lora_rank]``.
        weights_proj: ``[num_heads, H]``.
        compressor: makes the keys.
    """

    def __init__(
        self,
        hidden_size: int,
        q_lora_rank: int,
        num_heads: int,
        head_dim: int,
        top_k: int,
        ratio: int,
        norm_eps: float,
        rotary: ComplexExpRotaryEmbedding,
        dtype: torch.dtype,
        wq_b: nn.Parameter | QuantizedWeight | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.top_k = top_k
        self.ratio = ratio
        self.query_scale: float = (num_heads * head_dim) ** -0.5
        if wq_b is None:
            wq_b = nn.Parameter(
                torch.empty(num_heads * head_dim, q_lora_rank, dtype=dtype), requires_grad=False
            )
        self.wq_b: Any = wq_b
        self.weights_proj = nn.Parameter(
            torch.empty(num_heads, hidden_size, dtype=dtype), requires_grad=False
        )
        self.compressor = Compressor(hidden_size, head_dim, ratio, norm_eps, rotary, dtype)

    def query(
        self,
        hidden: torch.Tensor,
        q_latent: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated queries ``[T, num_heads, head_dim]`` and head weights ``[T, num_heads]``.

        Args:
            hidden: ``[T, H]``.
            q_latent: ``[T, q_lora_rank]``, normed.
            cos: ``[T, R / 2]`` of the compressed branch.
            sin: the same shape.
        """
        q = project(q_latent, self.wq_b).view(-1, self.num_heads, self.head_dim)
        q = apply_rotary(q, cos, sin, at_end=True)
        weights = linear(hidden, self.weights_proj).float()
        return q, weights * self.query_scale
