"""DeepSeek-V4's attention block: query and key-value prologue, DSA, grouped output projection.

Shapes: T tokens, H hidden size, h query heads and g output groups on this rank, D head width.
"""

from __future__ import annotations

import torch
from ascend_attention.layers.compressor import Compressor
from ascend_attention.layers.indexer import DeepseekV4Indexer
from ascend_attention.vllm.dsa import DSAAttention, DSAShape
from ascend_attention.vllm.dsa.impl import DSAInputs
from ascend_ops_core.ops.linear import grouped_linear, linear
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.ops.rotary import apply_rotary, rms_norm_rotary
from torch import nn
from vllm.distributed import tensor_model_parallel_all_reduce

from ascend_models_deepseek.deepseek_v4.build import Build, parameter
from ascend_models_deepseek.deepseek_v4.rotation import StepRotation


class DeepseekV4Attention(nn.Module):
    """Attention of one layer.

    Args:
        build: what all layers share.
        layer: number of the layer, MTP layers after the main ones.
        prefix: name of the layer, with its number.
    """

    def __init__(self, build: Build, layer: int, prefix: str) -> None:
        super().__init__()
        spec, shard, dtype = build.spec, build.shard, build.dtype
        hidden, width, lora = spec.hidden_size, spec.head_dim, spec.q_lora_rank
        ratio = spec.compress_ratio(layer)
        self.head_dim = width
        self.q_lora_rank = lora
        self.norm_eps = spec.rms_norm_eps
        self.compressed = ratio > 0
        self.num_groups = shard.num_groups
        self.tensor_parallel = build.tensor_parallel

        self.wqa_wkv = parameter(lora + width, hidden, dtype=dtype)
        self.q_norm = parameter(lora)
        self.kv_norm = parameter(width)
        self.wq_b = parameter(shard.num_heads * width, lora, dtype=dtype)
        group_in = shard.num_heads // shard.num_groups * width
        self.wo_a = parameter(shard.num_groups, spec.o_lora_rank, group_in, dtype=dtype)
        self.wo_b = parameter(hidden, shard.num_groups * spec.o_lora_rank, dtype=dtype)
        self.attn_sink = parameter(shard.num_heads)

        self.compressor = None
        self.indexer = None
        if ratio:
            self.compressor = Compressor(
                hidden, width, ratio, spec.rms_norm_eps, build.rotary.compress, dtype
            )
        if ratio == 4:
            self.indexer = DeepseekV4Indexer(
                hidden,
                lora,
                spec.index_n_heads,
                spec.index_head_dim,
                spec.index_topk,
                ratio,
                spec.rms_norm_eps,
                build.rotary.compress,
                dtype,
            )
        shape = DSAShape(ratio, shard.num_heads, width, spec.sliding_window, spec.index_head_dim)
        self.dsa = DSAAttention(shape, self.attn_sink, self.compressor, self.indexer, dtype, prefix)

    def forward(self, hidden: torch.Tensor, rotation: StepRotation) -> torch.Tensor:
        """``[T, H]`` from the layer's normed input ``[T, H]``."""
        tokens = hidden.shape[0]
        cos, sin = rotation.compress if self.compressed else rotation.main
        latent, kv = linear(hidden, self.wqa_wkv).split([self.q_lora_rank, self.head_dim], dim=-1)
        latent = rms_norm(latent.contiguous(), self.q_norm, self.norm_eps)
        query = linear(latent, self.wq_b).view(tokens, -1, self.head_dim)
        query = rms_norm_rotary(query, None, self.norm_eps, cos, sin)
        kv = rms_norm_rotary(kv.contiguous().unsqueeze(1), self.kv_norm, self.norm_eps, cos, sin)
        out = self.dsa(DSAInputs(hidden, latent, query, kv.squeeze(1), cos, sin))
        # Rows are key and value at once, so the output still carries the keys' rotation.
        out = apply_rotary(out, cos, sin, at_end=True, inverse=True)
        out = grouped_linear(out.view(tokens, self.num_groups, -1), self.wo_a)
        out = linear(out.reshape(tokens, -1), self.wo_b)
        return tensor_model_parallel_all_reduce(out) if self.tensor_parallel else out
