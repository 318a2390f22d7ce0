"""The vision tower: CLIP-like blocks with a rotation in three axes, and the two networks behind it.

Shapes: N patches, D width of the tower, h its heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.ops.norm import layer_norm
from ascend_ops_core.ops.rotary import apply_rotary
from torch import nn
from torch.nn import functional

from ascend_models_minimax.minimax_m3.vision.config import VisionSpec
from ascend_models_minimax.minimax_m3.vision.grid import Grid, rotation, segments


class Affine(nn.Module):
    """A product with a bias.

    Args:
        inputs: columns.
        outputs: rows.
        dtype: of both.
        bias: whether there is one.
    """

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = _empty(outputs, inputs, dtype=dtype)
        self.bias = _empty(outputs, dtype=dtype) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[N, outputs]`` of ``x [N, inputs]``."""
        product = linear(x, self.weight)
        return product if self.bias is None else product + self.bias


class Norm(nn.Module):
    """LayerNorm.

    Args:
        width: channels.
        eps: epsilon.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = _empty(width), _empty(width), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[N, width]``."""
        return layer_norm(x, self.weight, self.bias, self.eps)


class MiniMaxM3VisionLayer(nn.Module):
    """One block of the tower: attention within segments, and an MLP.

    Args:
        spec: the tower's config.
        dtype: the model's dtype.
    """

    def __init__(self, spec: VisionSpec, dtype: torch.dtype) -> None:
        super().__init__()
        hidden = spec.hidden_size
        self.heads = spec.num_attention_heads
        self.layer_norm1 = Norm(hidden, spec.layer_norm_eps)
        self.layer_norm2 = Norm(hidden, spec.layer_norm_eps)
        self.qkv = Affine(hidden, 3 * hidden, dtype)
        self.out = Affine(hidden, hidden, dtype)
        self.fc1 = Affine(hidden, spec.intermediate_size, dtype)
        self.fc2 = Affine(spec.intermediate_size, hidden, dtype)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, lengths: Sequence[int]
    ) -> torch.Tensor:
        """``[N, D]``.

        Args:
            x: ``[N, D]``.
            cos: ``[N, R / 2]`` float32.
            sin: the same.
            lengths: patches of every segment, in order.
        """
        product = self.qkv(self.layer_norm1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = product.unbind(1)
        query = apply_rotary(query.contiguous(), cos, sin, interleaved=False)
        key = apply_rotary(key.contiguous(), cos, sin, interleaved=False)
        parts = [one.split(list(lengths)) for one in (query, key, value)]
        attended = [_attend(*one) for one in zip(*parts, strict=True)]
        x = x + self.out(torch.cat(attended).flatten(1))
        return x + self.fc2(functional.gelu(self.fc1(self.layer_norm2(x))))


class MiniMaxM3PatchNetwork(nn.Module):
    """Two products with GELU between them.

    Args:
        inputs: channels in front.
        inner: channels between.
        outputs: channels behind.
        dtype: the model's dtype.
        bias: whether both products have one.
    """

    def __init__(
        self, inputs: int, inner: int, outputs: int, dtype: torch.dtype, *, bias: bool
    ) -> None:
        super().__init__()
        self.linear_1 = Affine(inputs, inner, dtype, bias=bias)
        self.linear_2 = Affine(inner, outputs, dtype, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[N, outputs]`` of ``x [N, inputs]``."""
        out: torch.Tensor = self.linear_2(functional.gelu(self.linear_1(x)))
        return out


class MiniMaxM3VisionModel(nn.Module):
    """From patches to embeddings of the text model; every rank holds and computes all of it.

    There is no norm behind the last block.

    Args:
        spec: the tower's config.
        dtype: the model's dtype.

    Attributes:
        projector: brings patches to the text model's width.
        merger: makes one embedding of a window's patches.
    """

    def __init__(self, spec: VisionSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.spec = spec
        self.dtype = dtype
        self.patch_embedding = Affine(spec.patch_values, spec.hidden_size, dtype, bias=False)
        self.pre_norm = Norm(spec.hidden_size, spec.layer_norm_eps)
        self.layers = nn.ModuleList(
            MiniMaxM3VisionLayer(spec, dtype) for _ in range(spec.num_hidden_layers)
        )
        text, inner = spec.text_hidden_size, spec.projector_width
        self.projector = MiniMaxM3PatchNetwork(
            spec.hidden_size, inner, text, dtype, bias=spec.projector_bias
        )
        self.merger = MiniMaxM3PatchNetwork(
            text * spec.spatial_merge_size**2, inner, text, dtype, bias=spec.merge_bias
        )

    def forward(self, pixels: torch.Tensor, grids: Sequence[Grid]) -> tuple[torch.Tensor, ...]:
        """Embeddings of every image or video, ``[t * h * w / merge^2, H]``.

        Args:
            pixels: ``[N, channels * temporal_patch * patch^2]``, the patches of all grids.
            grids: of images and videos, in order.

        Raises:
            InvalidInputError: another number or size of patches than the grids have.
        """
        spec = self.spec
        counts = [frames * height * width for frames, height, width in grids]
        if pixels.shape != (sum(counts), spec.patch_values):
            raise InvalidInputError(
                f"patches of shape {list(pixels.shape)}",
                f"grids {list(grids)} have {[sum(counts), spec.patch_values]}",
                "Pass what the model's own processor made of the images.",
            )
        parts = segments(grids, spec.segment_frames)
        tables = rotation(parts, spec.spatial_merge_size, spec.axis_dim, spec.rope_theta)
        cos, sin = (one.to(pixels.device) for one in tables)
        lengths = [frames * height * width for frames, height, width in parts]
        x = self.pre_norm(self.patch_embedding(pixels.to(self.dtype)))
        for layer in self.layers:
            x = layer(x, cos, sin, lengths)
        window = spec.spatial_merge_size**2
        merged = self.merger(self.projector(x).view(x.shape[0] // window, -1))
        out: tuple[torch.Tensor, ...] = merged.split([count // window for count in counts])
        return out


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``[N, h, d]`` of one segment, whose patches all see each other."""
    q, k, v = (one.transpose(0, 1).unsqueeze(0) for one in (query, key, value))
    return functional.scaled_dot_product_attention(q, k, v).squeeze(0).transpose(0, 1)


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
