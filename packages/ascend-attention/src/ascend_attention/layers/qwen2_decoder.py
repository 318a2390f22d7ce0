"""Qwen2's decoder as an encoder of images, as DeepSeek-OCR-2 has it behind its patches.

A sequence is a picture's ``n`` rows and then ``n`` learnt queries. Every row sees the whole
picture; a query also sees the queries up to itself. So pictures attend as encoders do, and queries
as a causal model does whose first ``n`` tokens are in the cache already: no mask is ever built.

Source: ``vllm.model_executor.models.deepencoder2``, of the DeepSeek-OCR-2 paper's encoder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from ascend_ops_core.checks import require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.activation import silu_and_mul
from ascend_ops_core.ops.norm import add_rms_norm, rms_norm
from ascend_ops_core.ops.rotary import apply_rotary_qk
from torch import nn

from ascend_attention.ops.encoder_attention import encoder_attention
from ascend_attention.ops.paged_attention import paged_attention

__all__ = ["AscendQwen2Model", "Qwen2DecoderShape"]

# Rows of a block of keys, at most; paged attention's kernels and torch_npu's take this one.
_BLOCK = 128


@dataclass(frozen=True)
class Qwen2DecoderShape:
    """Sizes of the decoder; the defaults are DeepSeek-OCR-2's.

    Attributes:
        layers: number of decoder layers.
        hidden_size: width of a row.
        heads: query heads, of ``hidden_size / heads`` channels each.
        key_heads: key and value heads; the same number of query heads shares each.
        intermediate_size: width of the gated layer.
        eps: of the norms.
        rope_theta: base of the rotation.
    """

    layers: int = 24
    hidden_size: int = 896
    heads: int = 14
    key_heads: int = 2
    intermediate_size: int = 4864
    eps: float = 1e-6
    rope_theta: float = 1e6

    def __post_init__(self) -> None:
        """Refuse sizes that do not divide.

        Raises:
            InvalidInputError: heads that do not divide the width, or key heads not the heads.
        """
        if self.hidden_size % self.heads or self.heads % self.key_heads:
            raise InvalidInputError(
                f"{self.hidden_size} channels, {self.heads} heads, {self.key_heads} key heads",
                "heads divide the channels, and key heads the heads",
                "Check the encoder's config.",
            )

    @property
    def head_size(self) -> int:
        """Channels of a head."""
        return self.hidden_size // self.heads


@dataclass(frozen=True)
class _Places:
    """Where the rows of ``B`` sequences of ``2 n`` stand, the same for all layers.

    Attributes:
        half: ``n``.
        cos: ``[B * 2 n, head / 2]`` float32.
        sin: the same.
        pictures: ``[B + 1]`` int32, where pictures begin and end among rows of pictures alone.
        blocks: ``[B, blocks]`` int32, blocks of the keys of each sequence.
        request: ``[B * n]`` int32, the sequence of every query.
        position: ``[B * n]`` int32, the place of every query in its sequence.
    """

    half: int
    cos: torch.Tensor
    sin: torch.Tensor
    pictures: torch.Tensor
    blocks: torch.Tensor
    request: torch.Tensor
    position: torch.Tensor

    @classmethod
    def build(
        cls, shape: Qwen2DecoderShape, batch: int, rows: int, device: torch.device
    ) -> _Places:
        half, width = rows // 2, shape.head_size
        powers = torch.arange(0, width, 2, device=device, dtype=torch.float32) / width
        angles = torch.arange(rows, device=device)[:, None] / shape.rope_theta**powers
        each = rows // _block_rows(rows)
        count = torch.arange(max(batch * each, batch, rows) + 1, device=device, dtype=torch.int32)
        return cls(
            half,
            angles.cos().repeat(batch, 1),
            angles.sin().repeat(batch, 1),
            count[: batch + 1] * half,
            count[: batch * each].view(batch, each),
            count[:batch].repeat_interleave(half),
            count[half:rows].repeat(batch),
        )


def _block_rows(rows: int) -> int:
    return math.gcd(rows, _BLOCK)


class AscendQwen2RMSNorm(nn.Module):
    """RMS norm with a weight, of float32 inside.

    Args:
        width: of a row.
        eps: added to the mean square.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Norm of ``[T, width]``, or of its sum with the residual stream; and that sum."""
        if residual is None:
            return rms_norm(x, self.weight, self.eps), x
        return add_rms_norm(x, residual, self.weight, None, self.eps)


class AscendQwen2Attention(nn.Module):
    """Attention of pictures to themselves, and of queries to both.

    Args:
        shape: of the decoder.
    """

    def __init__(self, shape: Qwen2DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        inner, keys = shape.heads * shape.head_size, shape.key_heads * shape.head_size
        self.q_proj = nn.Linear(shape.hidden_size, inner)
        self.k_proj = nn.Linear(shape.hidden_size, keys)
        self.v_proj = nn.Linear(shape.hidden_size, keys)
        self.o_proj = nn.Linear(inner, shape.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, places: _Places) -> torch.Tensor:
        """``[B * 2 n, hidden_size]`` to the same."""
        width, half = self.shape.head_size, places.half
        query, key = apply_rotary_qk(
            self.q_proj(x).unflatten(-1, (-1, width)),
            self.k_proj(x).unflatten(-1, (-1, width)),
            places.cos,
            places.sin,
        )
        value = self.v_proj(x).unflatten(-1, (-1, width))
        batch, scale = x.shape[0] // (2 * half), width**-0.5
        split = [one.unflatten(0, (batch, 2 * half)) for one in (query, key, value)]
        attended = torch.empty_like(split[0])
        picture = [one[:, :half].flatten(0, 1) for one in split]
        attended[:, :half] = encoder_attention(
            picture[0],
            picture[1],
            picture[2],
            places.pictures,
            scale,
            ends=[half * (one + 1) for one in range(batch)],
        ).unflatten(0, (batch, half))
        block = _block_rows(2 * half)
        attended[:, half:] = paged_attention(
            split[0][:, half:].flatten(0, 1),
            key.unflatten(0, (-1, block)),
            value.unflatten(0, (-1, block)),
            places.blocks,
            places.request,
            places.position,
            scale,
            query_ends=[half * (one + 1) for one in range(batch)],
            seq_lens=[2 * half] * batch,
        )[0].unflatten(0, (batch, half))
        result: torch.Tensor = self.o_proj(attended.view(x.shape[0], -1))
        return result


class AscendQwen2MLP(nn.Module):
    """SwiGLU between two projections.

    Args:
        shape: of the decoder.
    """

    def __init__(self, shape: Qwen2DecoderShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden_size]`` to the same."""
        gate_up = torch.cat([self.gate_proj(x), self.up_proj(x)], dim=-1)
        result: torch.Tensor = self.down_proj(silu_and_mul(gate_up))
        return result


class AscendQwen2DecoderLayer(nn.Module):
    """One layer; its weights are named as transformers' ``Qwen2DecoderLayer``.

    Args:
        shape: of the decoder.
    """

    def __init__(self, shape: Qwen2DecoderShape) -> None:
        super().__init__()
        self.self_attn = AscendQwen2Attention(shape)
        self.mlp = AscendQwen2MLP(shape)
        self.input_layernorm = AscendQwen2RMSNorm(shape.hidden_size, shape.eps)
        self.post_attention_layernorm = AscendQwen2RMSNorm(shape.hidden_size, shape.eps)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, places: _Places
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output of the layer and the stream that it is still to be added to."""
        normed, residual = self.input_layernorm(x, residual)
        attended = self.self_attn(normed, places)
        normed, residual = self.post_attention_layernorm(attended, residual)
        return self.mlp(normed), residual


class AscendQwen2Model(nn.Module):
    """The decoder without an embedding; weights are named as transformers' ``Qwen2Model``.

    Args:
        shape: of the decoder.
    """

    def __init__(self, shape: Qwen2DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(AscendQwen2DecoderLayer(shape) for _ in range(shape.layers))
        self.norm = AscendQwen2RMSNorm(shape.hidden_size, shape.eps)

    def forward(self, embeds: torch.Tensor) -> torch.Tensor:
        """Encode pictures.

        Args:
            embeds: ``[B, 2 n, hidden_size]``, float32, bfloat16 or float16: the rows of a picture,
                then as many queries. ``B`` and ``n`` may be 0.

        Returns:
            The same shape, after the last norm.

        Raises:
            InvalidInputError: an odd number of rows, or rows of another width.
        """
        require_shape("embeds", embeds, None, None, self.shape.hidden_size)
        batch, rows, _ = embeds.shape
        if rows % 2:
            raise InvalidInputError(
                f"embeds of {rows} rows",
                "a sequence is a picture and as many queries",
                "Append one query for every row of the picture.",
            )
        if not embeds.numel():
            return embeds
        places = _Places.build(self.shape, batch, rows, embeds.device)
        x, residual = embeds.reshape(batch * rows, -1), None
        for layer in self.layers:
            x, residual = layer(x, residual, places)
        return self.norm(x, residual)[0].view(embeds.shape)
