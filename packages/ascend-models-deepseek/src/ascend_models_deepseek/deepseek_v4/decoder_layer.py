"""One DeepSeek-V4 layer: attention and experts, each between hyper-connections."""

from __future__ import annotations

import torch
from ascend_ops_core.layers.hyper_connection import HyperConnection
from torch import nn

from ascend_models_deepseek.deepseek_v4.attention import (
    DeepseekV4Attention,
    RotaryTables,
    StepRotation,
    parameter,
)
from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec
from ascend_models_deepseek.deepseek_v4.moe import DeepseekV4MoE
from ascend_models_deepseek.deepseek_v4.sharding import Shard


class DeepseekV2DecoderLayer(nn.Module):
    """DeepSeek-V4's decoder layer on residual streams ``[T, n, H]``.

    Args:
        spec: the model's config.
        shard: this rank's part.
        layer: number of the layer.
        tables: rotary tables.
        dtype: the model's dtype.
        prefix: name of the layer, with its number.
        tensor_parallel: reduce block outputs over the tensor-parallel group.
    """

    def __init__(
        self,
        spec: DeepseekV4Spec,
        shard: Shard,
        layer: int,
        tables: RotaryTables,
        dtype: torch.dtype,
        prefix: str,
        tensor_parallel: bool,
    ) -> None:
        super().__init__()
        self.hc_attn = _hyper_connection(spec)
        self.hc_ffn = _hyper_connection(spec)
        self.attn_norm = parameter(spec.hidden_size)
        self.ffn_norm = parameter(spec.hidden_size)
        self.attn = DeepseekV4Attention(
            spec, shard, layer, tables, dtype, f"{prefix}.attn", tensor_parallel
        )
        self.ffn = DeepseekV4MoE(spec, shard, layer, dtype, tensor_parallel)

    def forward(
        self, streams: torch.Tensor, input_ids: torch.Tensor, rotation: StepRotation
    ) -> torch.Tensor:
        """New streams ``[T, n, H]``."""
        hidden, plan = self.hc_attn.pre(streams, self.attn_norm)
        streams = self.hc_attn.post(self.attn(hidden, rotation), streams, plan)
        hidden, plan = self.hc_ffn.pre(streams, self.ffn_norm)
        return self.hc_ffn.post(self.ffn(hidden, input_ids), streams, plan)


def _hyper_connection(spec: DeepseekV4Spec) -> HyperConnection:
    return HyperConnection(
        spec.hc_mult, spec.hidden_size, spec.hc_sinkhorn_iters, spec.hc_eps, spec.rms_norm_eps
    )
