"""One layer of Kimi-Linear: attention and a feed-forward block on a residual stream."""

from __future__ import annotations

from typing import NamedTuple

import torch
from ascend_ops_core.ops.norm import add_rms_norm, rms_norm
from torch import nn

from ascend_models_kimi.kimi_k3.moe import AscendKimiMoE
from ascend_models_kimi.kimi_linear.attention import AscendKimiMLAAttention, KimiDeltaAttention
from ascend_models_kimi.kimi_linear.build import Build, parameter
from ascend_models_kimi.kimi_linear.moe import KimiMLP, KimiMoE


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


class KimiBlocks(nn.Module):
    """The blocks of a layer and their norms; which blocks they are follows from its number.

    Args:
        build: what all layers share.
        layer: number of the layer, MTP layers after the main ones.
        prefix: name of the layer, with its number.

    Attributes:
        input_layernorm: ``[H]`` float32.
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
        attention = KimiDeltaAttention if spec.is_delta_layer(layer) else AscendKimiMLAAttention
        self.self_attn = attention(build, f"{prefix}.self_attn")
        if spec.is_moe_layer(layer):
            moe = KimiMoE if spec.routed_hidden_size is None else AscendKimiMoE
            self.block_sparse_moe = moe(build, f"{build.param_prefix(layer)}.block_sparse_moe")
        else:
            self.mlp = KimiMLP(build, build.shard.dense)

    @property
    def ffn(self) -> nn.Module:
        """The feed-forward block."""
        return self.block_sparse_moe if hasattr(self, "block_sparse_moe") else self.mlp

    def attend(self, normed: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` of the layer's attention, summed over ranks."""
        return self.groups.tp.all_reduce(self.self_attn(normed))


class KimiDecoderLayer(KimiBlocks):
    """A layer on an ordinary residual stream; see :class:`KimiBlocks`."""

    def forward(self, stream: Stream) -> Stream:
        """The stream behind this layer, from the stream in front of it."""
        hidden, residual = stream.normed(self.input_layernorm, self.norm_eps)
        stream = Stream(residual, self.attend(hidden))
        hidden, residual = stream.normed(self.post_attention_layernorm, self.norm_eps)
        return Stream(residual, self.ffn(hidden))
