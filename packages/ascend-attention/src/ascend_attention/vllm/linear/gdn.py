"""AscendGatedDeltaNetAttention: vLLM's Gated DeltaNet layer on our operators and metadata."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.v1.attention.backend import AttentionBackend

from ascend_attention.ops.linear_gates import gdn_gates
from ascend_attention.ops.projection_split import split_qkvz_ba
from ascend_attention.vllm.linear.backend import AscendGDNAttentionBackend
from ascend_attention.vllm.linear.core import DeltaHeads, DeltaInputs, gated_delta_step
from ascend_attention.vllm.linear.states import step_metadata

__all__ = ["AscendGatedDeltaNetAttention", "conv_taps"]


class AscendGatedDeltaNetAttention(QwenGatedDeltaNetAttention):
    """Gated DeltaNet of Qwen3-Next and its kin; weights and their loading are vLLM's.

    Stands in the place of vLLM's ``QwenGatedDeltaNetAttention``, whose arguments it takes.

    Attributes:
        taps: ``[width, channels]`` of the convolution, the current token's row last; None until
            the weights are loaded.
    """

    taps: torch.Tensor | None = None

    def process_weights_after_loading(self, dtype: torch.dtype) -> None:
        """Keep the convolution's weight with its channels last.

        vLLM calls it whenever it has loaded weights. They stay where they are, since captured
        graphs read them there.

        Args:
            dtype: the model's.
        """
        loaded = conv_taps(self.conv1d)
        if self.taps is None:
            self.taps = loaded
        else:
            self.taps.copy_(loaded)

    def get_attn_backend(self) -> type[AttentionBackend]:
        return AscendGDNAttentionBackend

    @property
    def heads(self) -> DeltaHeads:
        """Heads of this rank."""
        return DeltaHeads(
            self.num_k_heads // self.tp_size,
            self.num_v_heads // self.tp_size,
            self.head_k_dim,
            self.head_v_dim,
        )

    @property
    def conv_states(self) -> torch.Tensor:
        """``[slots, rows, channels]``."""
        states: torch.Tensor = self.kv_cache[0]
        return states

    @property
    def recurrent_states(self) -> torch.Tensor:
        """``[slots, heads, value_dim, key_dim]``."""
        states: torch.Tensor = self.kv_cache[1]
        return states

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """``[T, H]`` from the normed input ``hidden_states [T, H]``."""
        qkvz, _ = self.in_proj_qkvz(hidden_states)
        ba, _ = self.in_proj_ba(hidden_states)
        mixed, gate, b, a = self._split(qkvz, ba)
        out: torch.Tensor = self._output_projection(self._attend(mixed, a, b), gate)
        return out

    def _split(
        self, qkvz: torch.Tensor, ba: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Inputs of the convolution, output gates ``[T, H, V]``, ``b`` and ``a`` ``[T, H]``."""
        heads = self.heads
        if self.gqa_interleaved_layout:
            return split_qkvz_ba(
                qkvz, ba, heads.key_heads, heads.heads, heads.key_dim, heads.value_dim
            )
        mixed, gate = qkvz.split([heads.channels, heads.heads * heads.value_dim], dim=-1)
        b, a = self.split_ba(ba)
        return mixed, gate.unflatten(-1, (heads.heads, heads.value_dim)), b, a

    def _attend(self, mixed: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """``[T, H, V]``; zeros in padding rows and in a dummy run without caches."""
        heads, meta = self.heads, step_metadata(self.prefix)
        shape = mixed.shape[0], heads.heads, heads.value_dim
        if meta is None:
            return mixed.new_zeros(shape)
        tokens = meta.num_tokens
        decay, beta = gdn_gates(a[:tokens], b[:tokens], self.A_log, self.dt_bias)
        out = mixed.new_empty(shape)
        assert self.taps is not None, "a step before the weights were loaded"
        given = DeltaInputs(mixed[:tokens], decay, beta, self.taps, self.conv1d.bias)
        gated_delta_step(heads, self, given, meta, out)
        return out


def conv_taps(conv1d: torch.nn.Module) -> torch.Tensor:
    """``[width, channels]`` of the convolution of a vLLM layer, the current token's row last.

    Where the CPU has AMX, vLLM 0.27.1 packs the weight in its place for a kernel of its own, and
    keeps the one of the checkpoint as ``_cpu_unpacked_conv_weight``.
    """
    kept = "_cpu_unpacked_conv_weight"
    weight: torch.Tensor = getattr(conv1d, kept if hasattr(conv1d, kept) else "weight")
    return weight.reshape(weight.shape[0], weight.shape[-1]).T.contiguous()
