"""The states of a layer of linear attention as vLLM sees them."""

from __future__ import annotations

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.mamba.mamba_utils import (
    get_conv_copy_spec,
    get_temporal_copy_spec,
)
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

from ascend_attention.state_caches import StateKind
from ascend_attention.vllm.linear.backend import AscendGDNAttentionBackend
from ascend_attention.vllm.linear.metadata import AscendGDNMetadata

STATE_COPY_FUNCTIONS = (get_conv_copy_spec, get_temporal_copy_spec)
"""How vLLM copies both states of a slot to the block of a cached prefix."""


class LinearStateLayer(torch.nn.Module, MambaBase):
    """The states of one layer, registered with the engine under its prefix.

    Args:
        kind: what a slot holds.
        prefix: unique name with exactly one integer, the layer's number.

    Attributes:
        kv_cache: what the engine bound: the convolution's inputs ``[slots, rows, channels]`` and
            the recurrent states ``[slots, heads, value_dim, key_dim]``, side by side in a page,
            so with gaps between slots.
    """

    kv_cache: tuple[torch.Tensor, ...]

    def __init__(self, kind: StateKind, prefix: str) -> None:
        super().__init__()
        self.kind = kind
        self.prefix = prefix
        self.kv_cache = ()
        context = get_current_vllm_config().compilation_config.static_forward_context
        if prefix in context:
            raise ValueError(
                f"state {prefix!r} is declared twice; every layer needs its own prefix"
            )
        context[prefix] = self

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of a slot's states."""
        return self.kind.shapes

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        """Their dtypes."""
        return self.kind.dtypes

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        """The nearest of vLLM's backends, by which it knows how states move."""
        return MambaAttentionBackendEnum.GDN_ATTN

    def get_attn_backend(self) -> type[AttentionBackend]:
        return AscendGDNAttentionBackend

    @property
    def conv_states(self) -> torch.Tensor:
        """``[slots, rows, channels]``."""
        return self.kv_cache[0]

    @property
    def recurrent_states(self) -> torch.Tensor:
        """``[slots, heads, value_dim, key_dim]`` float32."""
        return self.kv_cache[1]

    def metadata(self) -> AscendGDNMetadata | None:
        """This step's metadata, or None in a dummy run without caches."""
        return step_metadata(self.prefix)


def step_metadata(prefix: str) -> AscendGDNMetadata | None:
    """This step's metadata of the states called ``prefix``; None in a dummy run without caches.

    Raises:
        KeyError: the states are in no group of this step.
    """
    by_layer = get_forward_context().attn_metadata
    if by_layer is None:
        return None
    if prefix not in by_layer:
        raise KeyError(
            f"no metadata for {prefix!r}; metadata exists for {sorted(by_layer)}. The states are "
            "in no KV cache group of this step."
        )
    made: AscendGDNMetadata = by_layer[prefix].get()
    return made


def drafts_of(vllm_config: VllmConfig) -> int:
    """Most draft tokens of a step."""
    speculative = vllm_config.speculative_config
    return 0 if speculative is None else speculative.num_speculative_tokens
