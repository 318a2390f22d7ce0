"""One layer of MiniMax-M3: attention and a feed-forward block on a residual stream."""

from __future__ import annotations

from typing import NamedTuple

import torch
from ascend_ops_core.ops.norm import add_rms_norm, rms_norm
from torch import nn

from ascend_models_minimax.minimax_m3.attention import (
    MiniMaxM3Attention,
    MiniMaxM3SparseAttention,
)
from ascend_models_minimax.minimax_m3.build import Build, parameter
from ascend_models_minimax.minimax_m3.moe import MiniMaxM3MLP, MiniMaxM3MoE


class Stream(NamedTuple):
    """The residual stream between blocks, whose last addition the next norm makes.

    Attributes:
        residual: ``[T, H]``; None in front of the first layer.
        update: ``[T, H]``, what the last block gave, not yet added.
    """

    residual: torch.Tensor | None
    update: torch.Tensor

    def normed(self, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        """The RMS norm of the sum, and the sum."""
        if self.residual is None:
            return rms_norm(self.update, weight, eps), self.update
        return add_rms_norm(self.update, self.residual, weight, None, eps)

    def sum(self) -> torch.Tensor:
        """The stream after the addition."""
        return self.update if self.residual is None else self.residual + self.update


class MiniMaxM3DecoderLayer(nn.Module):
    """A layer; which blocks it has follows from its number.

    Args:
        build: what all layers share.
        layer: number of the layer, MTP layers after the main ones.
        prefix: name of the layer, with its number.

    Attributes:
        input_layernorm: ``[H]`` float32, factors of the norm: one more than the checkpoint has.
        post_attention_layernorm: the same.
        ffn: ``mlp`` or ``block_sparse_moe``, as checkpoints name them.
    """

    def __init__(self, build: Build, layer: int, prefix: str) -> None:
        super().__init__()
        spec = build.spec
        self.norm_eps = spec.rms_norm_eps
        self.groups = build.groups
        self.input_layernorm = parameter(spec.hidden_size)
        self.post_attention_layernorm = parameter(spec.hidden_size)
        sparse = spec.is_sparse_layer(layer)
        attention = MiniMaxM3SparseAttention if sparse else MiniMaxM3Attention
        self.self_attn = attention(build, layer, f"{prefix}.self_attn")
        if spec.is_moe_layer(layer):
            self.block_sparse_moe = MiniMaxM3MoE(build, f"{build.param(layer)}.block_sparse_moe")
        else:
            self.mlp = MiniMaxM3MLP(build, f"{build.param(layer)}.mlp", build.shard.dense)

    @property
    def ffn(self) -> MiniMaxM3MLP | MiniMaxM3MoE:
        """The feed-forward block."""
        return self.block_sparse_moe if hasattr(self, "block_sparse_moe") else self.mlp

    def forward(self, stream: Stream, cos: torch.Tensor, sin: torch.Tensor) -> Stream:
        """The stream behind this layer.

        Args:
            stream: the stream in front of it.
            cos: ``[T, R / 2]`` float32, the rotation of the tokens.
            sin: the same.
        """
        hidden, residual = stream.normed(self.input_layernorm, self.norm_eps)
        attended = self.groups.tp.all_reduce(self.self_attn(hidden, cos, sin))
        stream = Stream(residual, attended)
        hidden, residual = stream.normed(self.post_attention_layernorm, self.norm_eps)
        return Stream(residual, self.ffn(hidden))
