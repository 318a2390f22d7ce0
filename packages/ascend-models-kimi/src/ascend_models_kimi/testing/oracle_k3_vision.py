"""Kimi-K3's vision tower and projector written out by their formulas, for one image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch


def image_embeddings(
    tensors: Mapping[str, torch.Tensor],
    config: Mapping[str, Any],
    pixels: torch.Tensor,
    grid: tuple[int, int],
) -> torch.Tensor:
    """Return `[rows * columns / 4, hidden]` embeddings of the text model, windows row by row.

    Args:
        tensors: The checkpoint's, in float64.
        config: `vision_config`.
        pixels: `[rows * columns, 3, side, side]` normed patches, row by row.
        grid: Rows and columns of patches.
    """
    rows, columns = grid
    tower, eps = "vision_tower", torch.finfo(torch.float32).eps
    filters = tensors[f"{tower}.patch_embed.proj.weight"].flatten(1)
    table = tensors[f"{tower}.patch_embed.pos_emb.weight"]
    place = [(r, c) for r in range(rows) for c in range(columns)]
    x = torch.stack(
        [
            filters @ patch.double().flatten() + _position(table, r, c, grid)
            for patch, (r, c) in zip(pixels, place, strict=True)
        ]
    )
    heads, width = config["vt_num_attention_heads"], config["qkv_hidden_size"]
    channels = width // heads
    for layer in range(config["vt_num_hidden_layers"]):
        name = f"{tower}.encoder.blocks.{layer}"
        normed = _norm(x, tensors[f"{name}.norm0.weight"], eps)
        q, k, v = (normed @ tensors[f"{name}.wqkv.weight"].T).view(-1, 3, heads, channels).unbind(1)
        q, k = (
            torch.stack([_rotated(one, r, c) for one, (r, c) in zip(both, place, strict=True)])
            for both in (q, k)
        )
        scores = torch.einsum("qhc,khc->hqk", q, k) / channels**0.5
        out = torch.einsum("hqk,khc->qhc", scores.softmax(-1), v).flatten(1)
        x = x + out @ tensors[f"{name}.wo.weight"].T
        normed = _norm(x, tensors[f"{name}.norm1.weight"], eps)
        inner = _tanh_gelu(normed @ tensors[f"{name}.mlp.fc0.weight"].T)
        x = x + inner @ tensors[f"{name}.mlp.fc1.weight"].T
    x = _norm(x, tensors[f"{tower}.encoder.final_layernorm.weight"], eps)
    windows = [
        torch.cat([x[(r + i) * columns + c + j] for i in range(2) for j in range(2)])
        for r in range(0, rows, 2)
        for c in range(0, columns, 2)
    ]
    inner = torch.stack(windows) @ tensors["mm_projector.proj.0.weight"].T
    inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    out = inner @ tensors["mm_projector.proj.2.weight"].T
    return _norm(
        out, tensors["mm_projector.post_norm.weight"], config.get("projector_ln_eps", 1e-5)
    )


def _position(table: torch.Tensor, r: int, c: int, grid: tuple[int, int]) -> torch.Tensor:
    """A patch's row of the table, resized to the grid by bilinear interpolation of its cells."""
    mixed = []
    for place, size, cells in ((r, grid[0], table.shape[0]), (c, grid[1], table.shape[1])):
        # The centre of the patch, measured in cells from the centre of the first one.
        at = max((place + 0.5) * cells / size - 0.5, 0.0)
        low = min(int(at), cells - 1)
        mixed.append((low, min(low + 1, cells - 1), at - low))
    (r0, r1, down), (c0, c1, right) = mixed
    top = table[r0, c0] * (1 - right) + table[r0, c1] * right
    bottom = table[r1, c0] * (1 - right) + table[r1, c1] * right
    return top * (1 - down) + bottom * down


def _rotated(heads: torch.Tensor, r: int, c: int) -> torch.Tensor:
    """`[heads, channels]`: pairs of neighbours turned by column and row in turn."""
    out = heads.clone()
    channels = heads.shape[1]
    for pair in range(channels // 2):
        angle = (r if pair % 2 else c) * 10000.0 ** (-(pair // 2) * 4 / channels)
        a, b = heads[:, 2 * pair], heads[:, 2 * pair + 1]
        out[:, 2 * pair] = a * math.cos(angle) - b * math.sin(angle)
        out[:, 2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
    return out


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(inner))
