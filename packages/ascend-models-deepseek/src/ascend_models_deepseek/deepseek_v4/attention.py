"""DeepSeek-V4's attention block: query and key-value prologue, DSA, grouped output projection.

Shapes: T tokens, H hidden size, h query heads on this rank, D head width.
"""

from __future__ import annotations

import torch
from ascend_attention.layers.compressor import Compressor
from ascend_attention.layers.indexer import DeepseekV4Indexer
from ascend_attention.layers.prologue import split_prologue
from ascend_attention.ops.mla.prologue import finish_kv
from ascend_attention.vllm.dsa import DSAAttention, DSAShape
from ascend_attention.vllm.dsa.impl import DSAInputs
from ascend_ops_core.quantized_weights.weight import project
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
        self.norm_eps = spec.rms_norm_eps
        self.compressed = ratio > 0
        self.tensor_parallel = build.tensor_parallel

        param = f"{build.param_prefix(layer)}.attn"
        self.wqa_wkv = build.weight(f"{param}.wqa_wkv", lora + width, hidden)
        self.q_norm = parameter(lora)
        self.kv_norm = parameter(width)
        self.wq_b = build.weight(f"{param}.wq_b", shard.num_heads * width, lora)
        self.o_proj = build.projection.layer()
        for name in ("wo_a", "wo_b"):
            held = build.forms.held(f"{param}.o_proj.{name}")
            if held is not None:
                self.o_proj.hold(name, held)
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
                build.weight(
                    f"{param}.indexer.wq_b", spec.index_n_heads * spec.index_head_dim, lora
                ),
            )
        shape = DSAShape(
            ratio,
            shard.num_heads,
            width,
            spec.rope_head_dim,
            spec.sliding_window,
            spec.index_head_dim,
            build.device,
            build.block_tokens,
            build.keep_dtype,
        )
        self.dsa = DSAAttention(shape, self.attn_sink, self.compressor, self.indexer, dtype, prefix)

    def forward(self, hidden: torch.Tensor, rotation: StepRotation) -> torch.Tensor:
        """``[T, H]`` from the layer's normed input ``[T, H]``."""
        cos, sin = rotation.compress if self.compressed else rotation.main
        prologue = split_prologue(
            hidden, self.wqa_wkv, self.wq_b, self.q_norm, self.kv_norm, self.norm_eps, cos, sin
        )
        out = self.dsa(DSAInputs(hidden, *prologue, cos, sin))
        out = self.o_proj(out, cos, sin)
        return tensor_model_parallel_all_reduce(out) if self.tensor_parallel else out

    def shared_kv(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Key-value rows ``[T, D]`` of tokens that ask nothing, normed and rotated.

        Args:
            states: ``[T, H]``, in place of the layer's normed input.
            cos: ``[T, R / 2]``.
            sin: the same.
        """
        weight = self.wqa_wkv
        if isinstance(weight, torch.Tensor):
            weight = weight[self.q_norm.shape[0] :]
        return finish_kv(project(states, weight), self.kv_norm, self.norm_eps, cos, sin)
