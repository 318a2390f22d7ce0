"""One DeepSeek-V4 layer: attention and experts, each between hyper-connections."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.layers.hyper_connection import HyperConnection
from torch import nn

from ascend_models_deepseek.deepseek_v4.attention import DeepseekV4Attention
from ascend_models_deepseek.deepseek_v4.build import Build, parameter
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.few_tokens import FewTokensLayer, run_layers
from ascend_models_deepseek.deepseek_v4.moe import DeepseekV4MoE
from ascend_models_deepseek.deepseek_v4.rotation import StepRotation


class DeepseekV2DecoderLayer(nn.Module):
    """DeepSeek-V4's decoder layer on residual streams ``[T, n, H]``.

    Args:
        build: what all layers share.
        layer: number of the layer.
        prefix: name of the layer, with its number.
    """

    def __init__(self, build: Build, layer: int, prefix: str) -> None:
        super().__init__()
        spec = build.spec
        self.hc_attn = _hyper_connection(spec)
        self.hc_ffn = _hyper_connection(spec)
        self.attn_norm = parameter(spec.hidden_size)
        self.ffn_norm = parameter(spec.hidden_size)
        self.attn = DeepseekV4Attention(build, layer, f"{prefix}.attn")
        self.ffn = DeepseekV4MoE(build, layer)
        self.tensor_parallel = build.tensor_parallel
        self.few_tokens = FewTokensLayer(self)

    def forward(
        self, streams: torch.Tensor, input_ids: torch.Tensor, rotation: StepRotation
    ) -> torch.Tensor:
        """New streams ``[T, n, H]``."""
        return run_decoder([self], streams, input_ids, rotation)

    def run_operators(
        self, streams: torch.Tensor, input_ids: torch.Tensor, rotation: StepRotation
    ) -> torch.Tensor:
        """New streams ``[T, n, H]``, for any number of tokens on any device."""
        hidden, plan = self.hc_attn.pre(streams, self.attn_norm)
        streams = self.hc_attn.post(self.attn(hidden, rotation), streams, plan)
        hidden, plan = self.hc_ffn.pre(streams, self.ffn_norm)
        return self.hc_ffn.post(self.ffn(hidden, input_ids), streams, plan)


def first_streams(embedded: torch.Tensor, count: int) -> torch.Tensor:
    """Streams ``[T, count, H]`` in front of the first layer, of ``embedded [T, H]``."""
    return embedded.unsqueeze(1).expand(-1, count, -1).contiguous()


def run_decoder(
    layers: Sequence[DeepseekV2DecoderLayer],
    streams: torch.Tensor,
    input_ids: torch.Tensor,
    rotation: StepRotation,
) -> torch.Tensor:
    """Streams ``[T, n, H]`` behind some layers.

    Args:
        layers: in order, at least one.
        streams: ``[T, n, H]``.
        input_ids: ``[T]`` integer.
        rotation: the step's.
    """
    new = run_layers([layer.few_tokens for layer in layers], streams, input_ids, rotation)
    if new is not None:
        return new
    for layer in layers:
        streams = layer.run_operators(streams, input_ids, rotation)
    return streams


def _hyper_connection(spec: DeepseekV4Spec) -> HyperConnection:
    return HyperConnection(
        spec.hc_mult, spec.hidden_size, spec.hc_sinkhorn_iters, spec.hc_eps, spec.rms_norm_eps
    )
