"""Tensors of the draft (MTP) layer of a tiny checkpoint, under the original `mtp.0.` names."""

from __future__ import annotations

import math

import torch

MTP_MODES = ("none", "random", "aligned")
"""How a checkpoint's draft layer is made: absent, random, or derived from the target's weights."""


def mtp_tensors(
    mode: str, target: dict[str, torch.Tensor], num_layers: int, seed: int
) -> dict[str, torch.Tensor]:
    """Make the draft layer for a target checkpoint.

    The draft block is window-only with score routing, so a target layer of that kind gives the
    shapes. "aligned" keeps that layer's values, lets the next token's embedding through unchanged
    and collapses the streams as the target does: the draft then sees what the target sees except
    for the other layers, and is often right where those matter little.

    Args:
        mode: One of `MTP_MODES`.
        target: The target's tensors under original names.
        num_layers: Number of target layers.
        seed: The checkpoint's seed.

    Returns:
        Tensors named `mtp.0.*`; empty for "none". The embedding and the head are the target's.
    """
    if mode == "none":
        return {}
    generator = torch.Generator().manual_seed(7919 * (seed + 1))
    hidden = target["embed.weight"].shape[1]
    block = block_shaped_like_draft(target, num_layers)
    tensors = {
        **{f"mtp.0.{name}": tensor for name, tensor in block.items()},
        "mtp.0.enorm.weight": torch.ones(hidden),
        "mtp.0.hnorm.weight": torch.ones(hidden),
        "mtp.0.norm.weight": target["norm.weight"],
        "mtp.0.e_proj.weight": torch.eye(hidden),
        "mtp.0.h_proj.weight": torch.eye(hidden),
        **{f"mtp.0.hc_head_{part}": target[f"hc_head_{part}"] for part in ("fn", "base", "scale")},
    }
    if mode == "aligned":
        tensors["mtp.0.h_proj.weight"] = 0.1 * torch.eye(hidden)
        return {name: tensor.clone() for name, tensor in tensors.items()}
    return {name: random_like(name, tensors[name], generator) for name in sorted(tensors)}


def block_shaped_like_draft(
    target: dict[str, torch.Tensor], num_layers: int
) -> dict[str, torch.Tensor]:
    """Collect one block without compressor and hash table, its router bias added where missing."""
    last = f"layers.{num_layers - 1}."
    block = {
        name.removeprefix(last): tensor
        for name, tensor in target.items()
        if name.startswith(last)
        and not any(part in name for part in (".compressor.", ".indexer.", "tid2eid"))
    }
    block.setdefault("ffn.gate.bias", torch.zeros(block["ffn.gate.weight"].shape[0]))
    return block


def random_like(name: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw a tensor of the same shape at a scale that keeps activations near one."""
    noise = torch.randn(like.shape, generator=generator)
    if name.endswith("scale"):
        return 1 + 0.2 * noise
    if "norm" in name:
        return 1 + 0.1 * noise
    return 0.3 * noise if like.ndim == 1 else noise / math.sqrt(like.shape[-1])
