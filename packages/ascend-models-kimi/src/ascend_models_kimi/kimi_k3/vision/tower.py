"""Kimi-K3's vision tower: patches of images in, embeddings of the text model out.

The formulas are those of vLLM 0.27.1's ``kimi_k25_vit`` with Kimi-K3's settings. Images have one
temporal patch, so nothing is averaged over time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ascend_ops_core.checks import require_shape
from ascend_ops_core.errors import InvalidInputError
from ascend_ops_core.ops.linear import linear
from ascend_ops_core.ops.norm import rms_norm
from ascend_ops_core.ops.rotary import apply_rotary
from torch import nn
from torch.nn import functional

from ascend_models_kimi.kimi_k3.vision.config import VisionSpec

Grid = tuple[int, int]
"""Rows and columns of an image's patches."""

_EPS = torch.finfo(torch.float32).eps
_THETA = 10000.0


class KimiK3VisionLayer(nn.Module):
    """One block of the tower: attention within an image, and an MLP.

    Args:
        spec: the tower's config.
        dtype: the model's dtype.
    """

    def __init__(self, spec: VisionSpec, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, width, inter = spec.hidden_size, spec.qkv_hidden_size, spec.intermediate_size
        self.heads = spec.num_attention_heads
        self.norm0 = _empty(hidden)
        self.norm1 = _empty(hidden)
        self.qkv = _empty(3 * width, hidden, dtype=dtype)
        self.out = _empty(hidden, width, dtype=dtype)
        self.fc0 = _empty(inter, hidden, dtype=dtype)
        self.fc1 = _empty(hidden, inter, dtype=dtype)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, lengths: Sequence[int]
    ) -> torch.Tensor:
        """``[N, D]``.

        Args:
            x: ``[N, D]``.
            cos: ``[N, C / 2]`` float32.
            sin: the same.
            lengths: patches of every image, in order.
        """
        product = linear(rms_norm(x, self.norm0, _EPS), self.qkv).unflatten(-1, (3, self.heads, -1))
        query, key, value = product.unbind(1)
        query = apply_rotary(query.contiguous(), cos, sin, interleaved=True)
        key = apply_rotary(key.contiguous(), cos, sin, interleaved=True)
        parts = [one.split(list(lengths)) for one in (query, key, value)]
        attended = [_attend(*one) for one in zip(*parts, strict=True)]
        x = x + linear(torch.cat(attended).flatten(1), self.out)
        inner = linear(rms_norm(x, self.norm1, _EPS), self.fc0)
        return x + linear(functional.gelu(inner, approximate="tanh"), self.fc1)


class AscendKimiK3MultiModalProjector(nn.Module):
    """From windows of patches to the text model's width.

    Args:
        spec: the tower's config.
        dtype: the model's dtype.

    Attributes:
        linear_1: ``[4 * D, 4 * D]``.
        linear_2: ``[H, 4 * D]``.
        post_norm: ``[H]`` float32.
        rotation: ``[H, H]``, see :meth:`rotate_output`; None where nothing is rotated.
    """

    rotation: torch.Tensor | None

    def __init__(self, spec: VisionSpec, dtype: torch.dtype) -> None:
        super().__init__()
        text = spec.text_hidden_size
        self.eps = spec.projector_eps
        self.linear_1 = _empty(spec.merged_size, spec.merged_size, dtype=dtype)
        self.linear_2 = _empty(text, spec.merged_size, dtype=dtype)
        self.post_norm = _empty(text)
        self.register_buffer("rotation", None, persistent=False)

    def rotate_output(self, matrix: torch.Tensor) -> None:
        """Rotate all embeddings from now on: ``e`` becomes ``e @ matrix``.

        For a text model whose residual stream was rotated before it was quantised, as ModelSlim
        can do. Checkpoints name no such matrix, so who rotated the model calls this.

        Args:
            matrix: ``[H, H]``, any float dtype.

        Raises:
            InvalidInputError: another shape.
        """
        width = self.post_norm.shape[0]
        require_shape("rotation", matrix, width, width)
        self.rotation = matrix.T.to(self.linear_2).contiguous()

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """``[M, H]`` of ``windows [M, 4 * D]``."""
        inner = functional.gelu(linear(windows, self.linear_1))
        out = rms_norm(linear(inner, self.linear_2), self.post_norm, self.eps)
        return out if self.rotation is None else linear(out, self.rotation)


class KimiK3VisionModel(nn.Module):
    """From patches to embeddings of the text model; every rank holds and computes all of it.

    Args:
        spec: the tower's config.
        dtype: the model's dtype.
    """

    def __init__(self, spec: VisionSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.spec = spec
        self.dtype = dtype
        self.patch_embedding = _empty(spec.hidden_size, spec.patch_values, dtype=dtype)
        self.table = _empty(spec.table_rows, spec.table_columns, spec.hidden_size, dtype=dtype)
        self.layers = nn.ModuleList(
            KimiK3VisionLayer(spec, dtype) for _ in range(spec.num_hidden_layers)
        )
        self.final_norm = _empty(spec.hidden_size)
        self.projector = AscendKimiK3MultiModalProjector(spec, dtype)

    def forward(self, pixels: torch.Tensor, grids: Sequence[Grid]) -> tuple[torch.Tensor, ...]:
        """Embeddings of every image, ``[rows * columns / 4, H]``, windows row by row.

        Args:
            pixels: ``[N, 3, side, side]``, the patches of all images, row by row.
            grids: of the images, in order.

        Raises:
            InvalidInputError: another number or size of patches than the grids have, or a grid that
                windows do not divide.
        """
        spec = self.spec
        counts = [rows * columns for rows, columns in grids]
        wanted = [sum(counts), 3, spec.patch_size, spec.patch_size]
        if list(pixels.shape) != wanted:
            raise InvalidInputError(
                f"patches of shape {list(pixels.shape)}",
                f"grids {list(grids)} have {wanted}",
                "Pass what the model's own processor made of the images.",
            )
        for rows, columns in grids:
            if rows % spec.merge or columns % spec.merge:
                raise InvalidInputError(
                    f"a grid of {rows} x {columns} patches",
                    f"windows of {spec.merge} x {spec.merge} patches are merged",
                    "Pad images to a multiple of the window.",
                )
        turns = [rotation(grid, spec.head_dim) for grid in grids]
        cos, sin = (torch.cat(one).to(pixels.device) for one in zip(*turns, strict=True))
        x = linear(pixels.flatten(1).to(self.dtype), self.patch_embedding)
        x = x + torch.cat([resized(self.table, grid) for grid in grids])
        for layer in self.layers:
            x = layer(x, cos, sin, counts)
        x = rms_norm(x, self.final_norm, _EPS)
        windows = [
            _windows(one, grid, spec.merge)
            for one, grid in zip(x.split(counts), grids, strict=True)
        ]
        merged = self.projector(torch.cat(windows))
        out: tuple[torch.Tensor, ...] = merged.split([len(one) for one in windows])
        return out


def resized(table: torch.Tensor, grid: Grid) -> torch.Tensor:
    """``[rows * columns, D]``, the learned table resized to a grid by bilinear interpolation.

    Args:
        table: ``[R, C, D]``.
        grid: rows and columns of patches.
    """
    if table.shape[:2] == grid:
        return table.flatten(0, 1)
    planes = table.permute(2, 0, 1).unsqueeze(0)
    made = functional.interpolate(planes, size=grid, mode="bilinear")
    return made.squeeze(0).permute(1, 2, 0).flatten(0, 1)


def rotation(grid: Grid, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine ``[rows * columns, channels / 2]`` float32, of column and row in turn.

    Args:
        grid: rows and columns of patches.
        channels: of a head.
    """
    rows, columns = grid
    steps = torch.arange(0, channels, 4, dtype=torch.float32) / channels
    frequencies = 1.0 / _THETA**steps
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    place = torch.stack([x.flatten(), y.flatten()], dim=-1).float()
    # [N, C / 4, 2]: each frequency for the column, then for the row.
    angles = (place.unsqueeze(1) * frequencies.view(1, -1, 1)).flatten(1)
    return angles.cos(), angles.sin()


def _windows(x: torch.Tensor, grid: Grid, merge: int) -> torch.Tensor:
    """``[rows * columns / 4, 4 * D]``: the patches of a window beside each other, row by row."""
    rows, columns = grid
    cut = x.view(rows // merge, merge, columns // merge, merge, -1)
    return cut.transpose(1, 2).reshape(rows * columns // merge**2, -1)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``[N, h, d]`` of one image, whose patches all see each other."""
    q, k, v = (one.transpose(0, 1).unsqueeze(0) for one in (query, key, value))
    return functional.scaled_dot_product_attention(q, k, v).squeeze(0).transpose(0, 1)


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
