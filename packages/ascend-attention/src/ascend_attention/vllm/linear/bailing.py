"""AscendBailingMoELinearAttention: vLLM's lightning attention layer on our operators."""

from __future__ import annotations

from typing import Any

import torch
from ascend_ops_core.ops.gated_norm import rms_norm_gated
from ascend_ops_core.ops.norm import rms_norm
from torch.nn import functional as F
from vllm.model_executor.layers.mamba.linear.bailing_linear_attn import BailingMoELinearAttention
from vllm.v1.attention.backend import AttentionBackend

from ascend_attention.ops.lightning_attention import (
    lightning_attention,
    lightning_decode,
    slopes_of,
)
from ascend_attention.vllm.linear.backend import AscendGDNAttentionBackend
from ascend_attention.vllm.linear.metadata import AscendGDNMetadata
from ascend_attention.vllm.linear.states import step_metadata

__all__ = ["AscendBailingMoELinearAttention"]


class AscendBailingMoELinearAttention(BailingMoELinearAttention):
    """Lightning attention of Ling 2.5 (``bailing_moe_linear``); weights and loading are vLLM's.

    Stands in the place of vLLM's ``BailingMoELinearAttention``, whose arguments it takes. Queries,
    keys and values are float32, whatever the model's dtype is; states are kept in the dtype that
    ``mamba_cache_dtype`` says, that of the model by default.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        slopes = slopes_of(self.num_heads, self.layer_idx, max(1, self.num_hidden_layers))
        first = self.tp_rank * self.tp_heads
        # On the device with the weights, where vLLM copies its own in every step.
        self.register_buffer("slopes", slopes[first : first + self.tp_heads], persistent=False)

    def get_attn_backend(self) -> type[AttentionBackend]:
        return AscendGDNAttentionBackend

    def forward(
        self, hidden_states: torch.Tensor, output: torch.Tensor, positions: torch.Tensor
    ) -> None:
        """Write ``output [T, D]``, from the normed input ``hidden_states [T, D]``.

        Args:
            hidden_states: rows behind the step's tokens are padding.
            output: written; zeros in padding rows.
            positions: ``[T]``.
        """
        meta = step_metadata(self.prefix)
        tokens = hidden_states.shape[0] if meta is None else meta.num_tokens
        own = hidden_states[:tokens]
        query, key, value = self._projected(own, positions[:tokens])
        mixed = torch.zeros_like(value) if meta is None else self._attend(query, key, value, meta)
        gate, _ = self.g_proj(own)
        norm = self.g_norm
        normed = rms_norm_gated(
            mixed.flatten(1),
            gate.float(),
            norm.weight,
            eps=norm.eps,
            group_size=norm.group_size,
            activation="sigmoid",
        )
        result, _ = self.dense(normed.to(hidden_states.dtype))
        output[:tokens] = result
        # Padding rows must not carry garbage into the next layer's collectives.
        output[tokens:] = 0

    def _projected(
        self, hidden: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries (scaled), keys and values, ``[T, H, D]`` float32."""
        qkv, _ = self.query_key_value(hidden)
        qkv = qkv.float()
        if self.linear_silu:
            qkv = F.silu(qkv)
        heads = qkv.unflatten(1, (3, self.tp_heads, self.head_dim))
        query, key, value = heads.unbind(1)
        if self.use_qk_norm:
            query = rms_norm(query.contiguous(), self.query_layernorm.weight, self.rms_norm_eps)
            key = rms_norm(key.contiguous(), self.key_layernorm.weight, self.rms_norm_eps)
        if self.linear_rope:
            flat = query.flatten(1).contiguous(), key.flatten(1).contiguous()
            query, key = self.rotary_emb(positions, *flat)
            shape = (self.tp_heads, self.head_dim)
            query, key = query.unflatten(1, shape), key.unflatten(1, shape)
        return query * self.scaling, key, value

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        meta: AscendGDNMetadata,
    ) -> torch.Tensor:
        """``[T, H, D]`` float32."""
        out = torch.empty_like(value, memory_format=torch.contiguous_format)
        (states,) = self.kv_cache
        slopes: torch.Tensor = self.slopes
        if meta.decodes is not None:
            one = meta.decodes
            rows = slice(meta.num_tokens) if one.tokens is None else one.tokens
            given = query[rows], key[rows], value[rows]
            out[rows] = lightning_decode(
                *given, slopes, one.starts, states, one.slots, one.accepted
            )
        if meta.prefills is not None:
            many = meta.prefills
            given = query[many.tokens], key[many.tokens], value[many.tokens]
            out[many.tokens] = lightning_attention(
                *given, slopes, many.starts, states=states, slots=many.slots,
                has_state=many.continued,
            )  # fmt: skip
        return out
