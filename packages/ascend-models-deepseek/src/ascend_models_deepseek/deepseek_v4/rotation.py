"""Rotary tables of a DeepSeek-V4 model, and a step's rows of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from ascend_ops_core.layers.rotary import ComplexExpRotaryEmbedding
from torch import nn

from ascend_models_deepseek.deepseek_v4.config import DeepseekV4Spec


@dataclass(frozen=True)
class StepRotation:
    """A step's rows of both tables, each a pair of ``[T, R / 2]`` float32."""

    main: tuple[torch.Tensor, torch.Tensor]
    compress: tuple[torch.Tensor, torch.Tensor]

    @cached_property
    def on_host(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Both as arrays, of tensors on the host."""
        (a, b), (c, d) = self.main, self.compress
        return (a.numpy(), b.numpy()), (c.numpy(), d.numpy())


class RotaryTables(nn.Module):
    """Tables shared by all layers: plain for sliding-window layers, scaled for the others.

    Args:
        spec: the model's config.
        max_position: tokens that a request may have.
    """

    def __init__(self, spec: DeepseekV4Spec, max_position: int) -> None:
        super().__init__()
        self.main = ComplexExpRotaryEmbedding(spec.rope_head_dim, spec.rope_theta, max_position)
        self.compress = ComplexExpRotaryEmbedding(
            spec.rope_head_dim, spec.compress_rope_theta, max_position, spec.yarn
        )

    def forward(self, positions: torch.Tensor) -> StepRotation:
        """Rows for ``positions [T]``, gathered once for all layers."""
        return StepRotation(self.main.gather(positions), self.compress.gather(positions))
