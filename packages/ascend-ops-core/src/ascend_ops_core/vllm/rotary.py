"""vLLM's rotary embeddings by this package's operators, from float32 tables.

vLLM keeps its table in the dtype of the model. Ours stays in float32 beside it, built by vLLM's
own class, so that every scaling it knows holds here as well.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.common import ApplyRotaryEmb
from vllm.model_executor.layers.rotary_embedding.deepseek_scaling_rope import (
    DeepseekScalingRotaryEmbedding,
)
from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import (
    YaRNScalingRotaryEmbedding,
)
from vllm.platforms import current_platform

from ascend_ops_core.ops.rotary import apply_rotary, apply_rotary_qk
from ascend_ops_core.ops.rotary_table import gather_cos_sin, mrope_cos_sin

Rotated = tuple[torch.Tensor, torch.Tensor | None]


def is_tabled(rotary: object) -> bool:
    """Whether one of vLLM's rotary embeddings is all in a table with a row for every position."""
    scaled = (
        DeepseekScalingRotaryEmbedding, Llama3RotaryEmbedding, YaRNScalingRotaryEmbedding
    )  # fmt: skip
    return isinstance(rotary, scaled) or type(rotary) in (RotaryEmbedding, AscendRotaryEmbedding)


def float32_tables(rotary: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of one of vLLM's rotary embeddings, ``[positions, R / 2]`` float32 each.

    Args:
        rotary: see :func:`is_tabled`; it builds the table, and keeps it from then on.
    """
    if "cos" not in rotary._buffers:
        cos, sin = rotary._compute_cos_sin_cache().float().chunk(2, dim=-1)
        rotary.register_buffer("cos", cos.contiguous(), persistent=False)
        rotary.register_buffer("sin", sin.contiguous(), persistent=False)
    return rotary.cos, rotary.sin


class _Float32Table:
    """What the classes below share: the table, and the rotation of heads in vLLM's shapes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if current_platform.device_type != "cpu":  # there vLLM's own table is the one in use
            self._tables()

    def _tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        return float32_tables(self)

    def forward_oot(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor | None = None,
        offsets: torch.Tensor | None = None,
    ) -> Rotated:
        """Rotate query and key heads.

        Args:
            positions: ``[T]``.
            query: ``[T, heads * head_size]`` or ``[T, heads, head_size]``.
            key: the same for key heads, or None.
            offsets: added to the positions.
        """
        if offsets is not None:
            positions = positions + offsets
        rows = gather_cos_sin(*self._tables(), positions.flatten())
        return self._rotated(*rows, query, key)

    def _rotated(
        self,
        cos: torch.Tensor,
        sin: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor | None,
    ) -> Rotated:
        module: Any = self
        shape = (cos.shape[0], -1, module.head_size)
        interleaved = not module.is_neox_style
        q = query.reshape(shape)
        if key is None:
            return apply_rotary(q, cos, sin, interleaved=interleaved).reshape(query.shape), None
        q, k = apply_rotary_qk(q, key.reshape(shape), cos, sin, interleaved=interleaved)
        return q.reshape(query.shape), k.reshape(key.shape)


class AscendRotaryEmbedding(_Float32Table, RotaryEmbedding):
    """Plain rotary embedding, whole heads or their first channels."""


class AscendLlama3RotaryEmbedding(_Float32Table, Llama3RotaryEmbedding):
    """Llama 3's scaling of low frequencies, in the table."""


class AscendYaRNRotaryEmbedding(_Float32Table, YaRNScalingRotaryEmbedding):
    """YaRN, its attention factor in the table."""


class AscendDeepseekScalingRotaryEmbedding(_Float32Table, DeepseekScalingRotaryEmbedding):
    """YaRN with DeepSeek's two weights of the attention factor."""


class AscendMRotaryEmbedding(_Float32Table, MRotaryEmbedding):
    """Rotary embedding whose pairs follow time, height or width."""

    def forward_oot(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor | None = None,
        offsets: torch.Tensor | None = None,
    ) -> Rotated:
        """As above; ``positions`` may be ``[3, T]``."""
        if positions.dim() == 1:
            return super().forward_oot(positions, query, key, offsets)
        rows = mrope_cos_sin(
            *self._tables(), positions, self.mrope_section, bool(self.mrope_interleaved)
        )
        return self._rotated(*rows, query, key)


class AscendApplyRotaryEmb(ApplyRotaryEmb):
    """Rotation by given tables, for vision encoders."""

    def forward_oot(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotate ``x``.

        Args:
            x: ``[S, H, D]`` or ``[B, S, H, D]``.
            cos: ``[S, R / 2]``, float32, bfloat16 or float16.
            sin: the same.
        """
        batch = x.shape[0] if x.dim() == 4 else 1
        cos, sin = (table.repeat(batch, 1) for table in (cos, sin))
        heads = x.reshape(-1, *x.shape[-2:])
        interleaved = not self.is_neox_style
        return apply_rotary(heads, cos, sin, interleaved=interleaved).reshape(x.shape)
