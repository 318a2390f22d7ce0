"""One layer of DeepSeek-V3 and its kin: attention and a feed-forward block on a residual stream."""

from __future__ import annotations

from typing import NamedTuple

import torch
from ascend_ops_core.ops.norm import add_rms_norm, rms_norm
from torch import nn

from ascend_models_deepseek.deepseek_v3.build import Build
from ascend_models_deepseek.deepseek_v3.moe import DeepseekV3MLP, DeepseekV3MoE
from ascend_models_deepseek.deepseek_v4.build import parameter


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


class DeepseekV3DecoderLayer(nn.Module):
    """A layer whose attention is that of the architecture.

    Args:
        build: what all layers share.
        layer: number of the layer, MTP layers after the main ones.
        prefix: name of the layer, with its number.
    """

    def __init__(self, build: Build, layer: int, prefix: str) -> None:
        super().__init__()
        spec = build.spec
        self.norm_eps = spec.rms_norm_eps
        self.groups = build.groups
        self.input_layernorm = parameter(spec.hidden_size)
        self.post_attention_layernorm = parameter(spec.hidden_size)
        self.self_attn = build.architecture.attention(build, layer, f"{prefix}.self_attn")
        self.mlp: DeepseekV3MLP | DeepseekV3MoE
        param = f"{build.param_prefix(layer)}.mlp"
        if spec.is_dense_layer(layer):
            self.mlp = DeepseekV3MLP(build, param, build.shard.dense)
        else:
            self.mlp = DeepseekV3MoE(build, param)

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
        return Stream(residual, self.mlp(hidden))
