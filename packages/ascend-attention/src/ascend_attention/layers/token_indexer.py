"""The lightning indexer over tokens (DeepSeek-V3.2, GLM-5): its weights and the products with them.

Shapes: T tokens, H hidden size, Q width of the query latent, h indexer heads, D their width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from ascend_ops_core.ops.hadamard import hadamard
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.ops.norm import layer_norm
from ascend_ops_core.ops.rotary import apply_rotary
from ascend_ops_core.quantized_weights.weight import project as product
from torch import nn

_KEY_NORM_EPS = 1e-6


@dataclass(frozen=True)
class IndexerShape:
    """Sizes of an indexer, which every tensor-parallel rank holds whole.

    Attributes:
        hidden_size: ``H``.
        q_lora_rank: ``Q``.
        num_heads: ``h``.
        head_dim: ``D``.
        rope_dim: rotated channels, the first of a head.
        top_k: tokens that a query keeps.
        interleaved: rotated pairs are channels ``(0, 1), (2, 3), ...`` (GLM-5) rather than
            ``(i, i + rope_dim / 2)`` (DeepSeek-V3.2).
    """

    hidden_size: int
    q_lora_rank: int
    num_heads: int
    head_dim: int
    rope_dim: int
    top_k: int
    interleaved: bool


class IndexerInputs(NamedTuple):
    """What the selection needs of a step's tokens.

    Attributes:
        query: ``[T, h, D]`` rotated.
        head_weights: ``[T, h]`` float32, scale factors included.
        key: ``[T, D]`` normed and rotated, to be cached.
    """

    query: torch.Tensor
    head_weights: torch.Tensor
    key: torch.Tensor


class TokenIndexer(nn.Module):
    """Makes queries, head weights and keys of a step's tokens.

    Args:
        shape: sizes.
        dtype: dtype of the projections.

    Attributes:
        wq_b: ``[h * D, Q]``; it may be replaced by a quantised weight.
        wk_weights: ``[D + h, H]``: the key's projection, then that of the heads' weights, so that
            one product gives both.
        k_norm: ``[D]`` float32.
        k_norm_bias: ``[D]`` float32.
    """

    def __init__(self, shape: IndexerShape, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        heads, width = shape.num_heads, shape.head_dim
        self.wq_b: Any = _empty(heads * width, shape.q_lora_rank, dtype=dtype)
        self.wk_weights = _empty(width + heads, shape.hidden_size, dtype=dtype)
        self.k_norm = _empty(width)
        self.k_norm_bias = _empty(width)
        self.score_scale: float = (heads * width) ** -0.5

    def project(
        self,
        hidden: torch.Tensor,
        q_latent: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *,
        rotate: bool,
    ) -> IndexerInputs:
        """What a step's tokens contribute and ask for.

        Args:
            hidden: ``[T, H]`` normed input of the layer; ``T`` may be 0.
            q_latent: ``[T, Q]`` normed query latent.
            cos: ``[T, rope_dim / 2]`` float32.
            sin: the same.
            rotate: rotate queries and keys by a Hadamard matrix, which spreads outliers before
                they are quantised and leaves their products as they are.
        """
        shape = self.shape
        query = product(q_latent, self.wq_b).unflatten(-1, (shape.num_heads, shape.head_dim))
        query = apply_rotary(query, cos, sin, interleaved=shape.interleaved)
        both = linear(hidden, self.wk_weights)
        key = layer_norm(
            both[:, : shape.head_dim].contiguous(), self.k_norm, self.k_norm_bias, _KEY_NORM_EPS
        )
        key = apply_rotary(key.unsqueeze(1), cos, sin, interleaved=shape.interleaved).squeeze(1)
        weights = both[:, shape.head_dim :].float() * self.score_scale
        if rotate:
            query, key = hadamard(query), hadamard(key)
        return IndexerInputs(query, weights, key)


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
