"""The order of work of the gated delta rule in a step: convolution, recurrence, states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ascend_attention.ops.causal_conv import causal_conv1d
from ascend_attention.ops.gated_delta_rule import (
    chunk_gated_delta_rule,
    recurrent_gated_delta_rule,
)
from ascend_attention.vllm.linear.metadata import AscendGDNMetadata, DecodeSegment, PrefillSegment

__all__ = ["DeltaHeads", "DeltaInputs", "DeltaStates", "gated_delta_step"]


@dataclass(frozen=True)
class DeltaHeads:
    """Heads of this rank.

    Attributes:
        key_heads: ``G``, each shared by ``heads / key_heads`` value heads.
        heads: ``H``.
        key_dim: ``K``.
        value_dim: ``V``.
    """

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int

    @property
    def channels(self) -> int:
        """Of the convolution: all queries, then all keys, then all values."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    @property
    def scale(self) -> float:
        """Factor on the queries."""
        return float(self.key_dim**-0.5)

    def split(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries and keys ``[T, G, K]`` and values ``[T, H, V]`` of ``mixed [T, channels]``."""
        keys = self.key_heads * self.key_dim
        query, key, value = mixed.split([keys, keys, self.heads * self.value_dim], dim=-1)
        shape = self.key_heads, self.key_dim
        return (
            query.unflatten(-1, shape),
            key.unflatten(-1, shape),
            value.unflatten(-1, (self.heads, self.value_dim)),
        )


@dataclass(frozen=True)
class DeltaInputs:
    """What a layer projects from a step's tokens, padding left out.

    Attributes:
        mixed: ``[T, channels]`` in front of the convolution.
        decay: ``[T, H]``, or ``[T, H, K]`` for each channel, float32 logarithms.
        beta: ``[T, H]`` behind the sigmoid.
        conv_weight: ``[width, channels]`` of any float dtype, the current token's row last.
        conv_bias: ``[channels]``, or None.
    """

    mixed: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor
    conv_weight: torch.Tensor
    conv_bias: torch.Tensor | None = None

    def rows(self, tokens: slice | torch.Tensor | None) -> DeltaInputs:
        """The same of some tokens; of all for None."""
        if tokens is None:
            return self
        return DeltaInputs(
            self.mixed[tokens],
            self.decay[tokens],
            self.beta[tokens],
            self.conv_weight,
            self.conv_bias,
        )


class DeltaStates(Protocol):
    """Where a layer's states are; see :class:`ascend_attention.vllm.linear.LinearStateLayer`."""

    @property
    def conv_states(self) -> torch.Tensor:
        """``[slots, rows, channels]``."""

    @property
    def recurrent_states(self) -> torch.Tensor:
        """``[slots, H, V, K]`` float32."""


def gated_delta_step(
    heads: DeltaHeads,
    states: DeltaStates,
    given: DeltaInputs,
    meta: AscendGDNMetadata,
    out: torch.Tensor,
) -> None:
    """Gated delta rule of a step's tokens, behind a causal convolution with SiLU.

    Queries and keys are normed to length one behind the convolution.

    Args:
        heads: sizes.
        states: read, and written for the next step.
        given: of the step's ``meta.num_tokens`` tokens.
        meta: the step.
        out: ``[rows, H, V]``; written, with zeros in padding rows behind the tokens.

    Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024); Kimi Linear (2025),
    section 3; the order of a step is that of vLLM 0.27.1's ``qwen_gdn_linear_attn.py``.
    """
    # Padding rows beyond the step's tokens must not carry garbage into the collectives.
    out[meta.num_tokens :] = 0
    if meta.decodes is not None:
        own = given.rows(meta.decodes.tokens)
        rows = slice(meta.num_tokens) if meta.decodes.tokens is None else meta.decodes.tokens
        out[rows] = _recurrent(heads, states, own, meta.decodes)
    if meta.prefills is not None:
        own = given.rows(meta.prefills.tokens)
        out[meta.prefills.tokens] = _chunked(heads, states, own, meta.prefills)


def _recurrent(
    heads: DeltaHeads, states: DeltaStates, own: DeltaInputs, segment: DecodeSegment
) -> torch.Tensor:
    mixed = causal_conv1d(
        own.mixed,
        own.conv_weight,
        segment.starts,
        bias=own.conv_bias,
        states=states.conv_states,
        slots=segment.slots[:, 0],
        accepted=segment.accepted,
        most_tokens=segment.most_tokens,
    )
    query, key, value = heads.split(mixed)
    return recurrent_gated_delta_rule(
        query,
        key,
        value,
        own.decay,
        own.beta,
        states.recurrent_states,
        segment.starts,
        segment.slots,
        segment.accepted,
        heads.scale,
        normalize=True,
    )


def _chunked(
    heads: DeltaHeads, states: DeltaStates, own: DeltaInputs, segment: PrefillSegment
) -> torch.Tensor:
    mixed = causal_conv1d(
        own.mixed,
        own.conv_weight,
        segment.starts,
        bias=own.conv_bias,
        states=states.conv_states,
        slots=segment.slots,
        has_state=segment.continued,
        most_tokens=segment.most_tokens,
    )
    query, key, value = heads.split(mixed)
    return chunk_gated_delta_rule(
        query,
        key,
        value,
        own.decay,
        own.beta,
        states.recurrent_states,
        segment.starts,
        segment.slots,
        segment.continued,
        heads.scale,
        normalize=True,
        chunks=segment.chunks,
    )
